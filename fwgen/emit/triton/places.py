"""Index expressions as places of a space, and their inversion: which variables reach an element."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

from fwgen.emit.triton.lanes import Place, constant, inside, never_negative, shifted
from fwgen.emit.triton.text import ADD, COMPARE, MUL, Text, binary, call, size, times
from fwgen.errors import UnsupportedError
from fwgen.ir.dims import ONE, ZERO, Dim
from fwgen.ir.nodes import Index, Var
from fwgen.ir.text import index_text


def place_of(index: Index, environment: Mapping[Var, Place]) -> Place:
    """The place that an index expression denotes; variables stand for the places given."""
    if index.variable is not None:
        return environment[index.variable]
    total = constant(ZERO)
    for coefficient, var in index.terms:
        total = _add(total, _scaled(environment[var], coefficient))
    total = shifted(total, index.offset)
    if index.modulo is None:
        return total
    return wrapped(total, index.modulo)


def wrapped(place: Place, modulo: Dim) -> Place:
    """A place modulo a size."""
    return Place(call("wrap", place.text, size(modulo)), natural=True, below=modulo)


def _scaled(place: Place, factor: Dim) -> Place:
    if factor == ONE:
        return place
    if place.dim is not None:
        return constant(place.dim * factor)
    return Place(times(factor, place.text), natural=place.natural and never_negative(factor))


def _add(a: Place, b: Place) -> Place:
    if a.dim is not None:
        return shifted(b, a.dim) if a.dim.terms else b
    if b.dim is not None:
        return shifted(a, b.dim)
    return Place(binary("+", ADD, a.text, b.text), natural=a.natural and b.natural)


Solution = tuple[dict[Var, Place], list[Text]]


def solve(index: Index, axis: Dim, place: Place) -> Solution | None:
    """The variables for which an index expression hits `place` of an axis, under conditions.

    None where it never does. Raises UnsupportedError for an expression that cannot be inverted.
    """
    if index.modulo is not None:
        return _solve_modulo(index, place), []
    if not index.terms:
        return _solve_constant(index.offset, place)
    if index.variable is not None and index.variable.dim == axis:
        return {index.variable: place}, []
    rest = shifted(place, -index.offset)
    if len(index.terms) == 1:
        coefficient, var = index.terms[0]
        if coefficient == -ONE:
            rest = Place(binary("-", ADD, size(index.offset), place.text))
        elif coefficient != ONE:
            raise _refusal(index)
        conditions = inside(rest, var.dim)
        return None if conditions is None else ({var: rest}, conditions)
    return _solve_radix(index, rest)


def _solve_constant(offset: Dim, place: Place) -> Solution | None:
    if place.dim is not None and (place.dim - offset).constant is not None:
        return ({}, []) if place.dim == offset else None
    return {}, [binary("==", COMPARE, place.text, size(offset))]


def _solve_modulo(index: Index, place: Place) -> dict[Var, Place]:
    if len(index.terms) != 1 or index.modulo is None:
        raise _refusal(index)
    coefficient, var = index.terms[0]
    if coefficient not in (ONE, -ONE) or var.dim != index.modulo:
        raise _refusal(index)
    rest = shifted(place, -index.offset)
    if coefficient != ONE:
        rest = Place(binary("-", ADD, size(index.offset), place.text))
    return {var: wrapped(rest, index.modulo)}


def _solve_radix(index: Index, rest: Place) -> Solution | None:
    """Several variables as the digits of one number: `K*i + j` with j below K."""
    for order in permutations(index.terms):
        weight = ONE
        for coefficient, var in order:
            if coefficient != weight:
                break
            weight = weight * var.dim
        else:
            break
    else:
        raise _refusal(index)
    conditions = [] if rest.natural else [binary(">=", COMPARE, rest.text, Text("0"))]
    found: dict[Var, Place] = {}
    text = rest.text
    for _, var in order[:-1]:
        digit = binary("%", MUL, text, size(var.dim))
        found[var] = Place(digit, natural=True, below=var.dim)
        text = binary("//", MUL, text, size(var.dim))
    last = order[-1][1]
    found[last] = Place(text, natural=True)
    return found, [*conditions, binary("<", COMPARE, text, size(last.dim))]


def _refusal(index: Index) -> UnsupportedError:
    return UnsupportedError(f"Triton kernels cannot invert the index `{index_text(index)}`")
