"""Sums over index variables, taken on parts: reads of matrices, dot products, deltas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fwgen.algebra.affine import ONE, Part, product, renamed, total
from fwgen.algebra.sink import Sink
from fwgen.ir.nodes import Apply, Const, Index, IndexValue, Scalar, Size, Var
from fwgen.ir.walk import variables


@dataclass(frozen=True, slots=True)
class Names:
    """What the narrow arrays of one statement are called, and the rule's line they come from."""

    suffix: str
    line: int

    def stem(self, letter: str) -> str:
        """`letter` of the state, such as `u_W`."""
        return f"{letter}_{self.suffix}" if self.suffix else letter


def reduced(
    parts: Sequence[Part], free: Sequence[Var], over: Sequence[Var], sink: Sink, names: Names
) -> list[Part]:
    """The sum over `over` as parts over `free`, the other variables; makes the reads it needs.

    `sum_j W[i, j] a[j]` becomes an access of a new array `r[i]`; parts with a wide factor are
    summed together by one statement.
    """
    result: list[Part] = []
    left: list[Part] = []
    for part in parts:
        bound, rest = without_deltas(part, list(over))
        if bound.wide:
            left.append(part)
        else:
            result.append(_summed(bound, rest, sink, names))
    if left:
        body = body_of(left, [*free, *over], sink, names)
        own = [v for v in free if v in variables(body)]
        read = sink.define(names.stem("r"), own, body, names.line, tuple(over), "sum")
        result.append(Part(None, (), (read,)) if len(own) > 1 else Part(None, (read,)))
    return result


def without_deltas(part: Part, over: list[Var]) -> tuple[Part, list[Var]]:
    """Carry out sums over factors `select(j == l, a, 0)`: the summed variable is replaced."""
    for factor in part.wide:
        found = _delta(factor, over)
        if found is None:
            continue
        gone, kept, value = found
        wide = tuple(f for f in part.wide if f is not factor)
        narrow = part.narrow if value == ONE else (*part.narrow, value)
        smaller = renamed(replace(part, wide=wide, narrow=narrow), {gone: Index.of(kept)})
        return without_deltas(smaller, [v for v in over if v != gone])
    return part, over


def _delta(factor: Scalar, over: Sequence[Var]) -> tuple[Var, Var, Scalar] | None:
    """(summed variable, variable that it equals, value there) of a delta."""
    match factor:
        case Apply("select", (Apply("eq", (IndexValue(i), IndexValue(j))), value, Const(0))):
            left, right = i.variable, j.variable
            if left is None or right is None or left == right or len(variables(value)) > 1:
                return None
            chosen = ONE if isinstance(value, Const) and value.value == 1 else value
            if left in over:
                return left, right, chosen
            if right in over:
                return right, left, chosen
    return None


def _summed(part: Part, over: Sequence[Var], sink: Sink, names: Names) -> Part:
    own = [] if part.base is None else variables(part.base)
    inside = [v for v in own if v in over]
    for axis in over:
        if axis not in own:
            number = _scalar_sum(part.side(axis), axis, sink, names)
            part = replace(part.without(axis), narrow=(*part.without(axis).narrow, number))
    if part.base is None or not inside:
        return part
    if len(inside) == len(own) == 2:
        row = _read(part, inside[1:], sink, names)
        number = _scalar_sum(row.side(inside[0]), inside[0], sink, names)
        return replace(row, narrow=(*row.without(inside[0]).narrow, number))
    return _read(part, inside, sink, names)


def _scalar_sum(items: Sequence[Scalar], axis: Var, sink: Sink, names: Names) -> Scalar:
    """sum over `axis` of a product, a scalar array."""
    if not items:
        return Size(axis.dim)
    return sink.define(names.stem("s"), (), product(items), names.line, (axis,), "sum")


def _read(part: Part, inside: Sequence[Var], sink: Sink, names: Names) -> Part:
    """sum over `inside` of base * one array per summed axis."""
    base = part.base
    assert base is not None
    factors: list[Scalar] = [base]
    for axis in inside:
        side = part.side(axis)
        if len(side) > 1:  # a decay among the factors is an array that its state shares
            side = tuple(sink.define(names.stem("d"), (axis,), f, names.line) for f in side)
        factors.append(sink.define(names.stem("x"), (axis,), product(side), names.line))
        part = part.without(axis)
    free = [v for v in variables(base) if v not in inside]
    read = sink.define(names.stem("r"), free, product(factors), names.line, tuple(inside), "sum")
    if len(free) > 1:
        return replace(part, base=None, wide=(*part.wide, read))
    return replace(part, base=None, narrow=(*part.narrow, read))


def body_of(parts: Sequence[Part], axes: Sequence[Var], sink: Sink, names: Names) -> Scalar:
    """Parts as one expression whose narrow factors are arrays, one per axis, in that order."""
    items: list[tuple[bool, Scalar]] = []
    bases = [part.base for part in parts]
    for position, base in enumerate(bases):
        own = [part for part in parts if part.base == base]
        if base is None or len(own) == 1:
            items.append((False, hoisted(parts[position], axes, sink, names)))
        elif position == bases.index(base):
            found = [in_arrays(replace(part, negative=False), axes, sink, names) for part in own]
            factors = [product((*part.narrow, *part.wide)) for part in found]
            signs = [part.negative for part in own]
            factor = total(list(zip(signs, factors, strict=True)))
            items.append((False, product((factor, base))))
    return total(items)


def hoisted(part: Part, axes: Sequence[Var], sink: Sink, names: Names) -> Scalar:
    """One part as a product of accesses."""
    part = in_arrays(part, axes, sink, names)
    base = () if part.base is None else (part.base,)
    return product((*part.narrow, *part.wide, *base), part.negative)


def in_arrays(part: Part, axes: Sequence[Var], sink: Sink, names: Names) -> Part:
    """One part with an array per axis; sign and scalars join the factor of one axis.

    That is the first axis of a write (the value side), the last one of a decay (the key side).
    """
    decays = part.base is not None
    used = [axis for axis in axes if part.side(axis)]
    scalars, negative = part.side(None), part.negative
    items: list[Scalar] = []
    carrier = used[-1 if decays else 0] if used else None
    if carrier is None and (scalars or (negative and decays)):
        stem = names.stem("d" if decays else "u")
        items.append(sink.define(stem, (), product(scalars, negative), names.line))
        negative = False
    for axis in used:
        body = product(part.side(axis))
        if axis == carrier:
            body, negative = product((*scalars, *part.side(axis)), negative), False
        letter = "d" if decays else "u" if axis == axes[0] else "c"
        items.append(sink.define(names.stem(letter), (axis,), body, names.line))
    return replace(part, narrow=tuple(items), negative=negative)
