"""Statements carried out element by element on sympy: values, and tangents that sympy derives.

Shares with the compiler the meaning of an operation in sympy (`thaw`), and nothing else: no
interpreter, no derivative table. Numbers have 50 digits unless they are symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import mpmath
import sympy

from fwgen.algebra.freeze import Atoms, thaw
from fwgen.ir.nodes import Apply, Index, IndexValue, Load, Position, Scalar, Size, Statement, Var

Key = tuple[str, tuple[int, ...]]
Values = dict[Key, Any]
"""Elements: numbers, sympy expressions, or `Dual`."""


@dataclass(frozen=True)
class Dual:
    """A number with its derivatives along several directions."""

    value: Any
    tangent: tuple[Any, ...]


@dataclass(frozen=True)
class _Body:
    atoms: tuple[Scalar, ...]
    value: Callable[..., Any]
    slopes: tuple[Callable[..., Any], ...]
    expression: Any
    symbols: tuple[Any, ...]


@cache
def _compiled(body: Scalar) -> _Body:
    atoms = Atoms()
    expression = thaw(body, atoms)
    symbols = tuple(atoms.symbols.values())
    slopes = (sympy.diff(expression, symbol) for symbol in symbols)
    return _Body(
        tuple(atoms.symbols),
        sympy.lambdify(symbols, expression, "mpmath"),
        tuple(sympy.lambdify(symbols, slope, "mpmath") for slope in slopes),
        expression,
        symbols,
    )


def place(index: Index, env: dict[Var, int], sizes: dict[str, int]) -> int:
    total = index.offset.evaluate(sizes)
    total += sum(c.evaluate(sizes) * env[var] for c, var in index.terms)
    return total if index.modulo is None else total % index.modulo.evaluate(sizes)


def key_of(load: Load, env: dict[Var, int], sizes: dict[str, int]) -> Key:
    return load.array, tuple(place(index, env, sizes) for index in load.index)


def _atom(node: Scalar, env: dict[Var, int], sizes: dict[str, int], values: Values) -> Any:
    match node:
        case Load():
            return values[key_of(node, env, sizes)]
        case Size(dim):
            return mpmath.mpf(dim.evaluate(sizes))
        case IndexValue(index):
            return mpmath.mpf(place(index, env, sizes))
        case Apply("stop_gradient", (inner,)):
            stopped = evaluate(inner, env, sizes, values)
            return stopped.value if isinstance(stopped, Dual) else stopped
    raise AssertionError(node)


def evaluate(body: Scalar, env: dict[Var, int], sizes: dict[str, int], values: Values) -> Any:
    if isinstance(body, Position):
        raise AssertionError("no step of these tests reads the position")
    compiled = _compiled(body)
    found = [_atom(node, env, sizes, values) for node in compiled.atoms]
    if any(isinstance(x, sympy.Basic) for x in found):
        return compiled.expression.subs(dict(zip(compiled.symbols, found, strict=True)))
    numbers = [x.value if isinstance(x, Dual) else x for x in found]
    value = compiled.value(*numbers)
    width = max((len(x.tangent) for x in found if isinstance(x, Dual)), default=0)
    if not width:
        return value
    tangent = [mpmath.mpf(0)] * width
    for x, slope in zip(found, compiled.slopes, strict=True):
        if isinstance(x, Dual):
            factor = slope(*numbers)
            tangent = [a + factor * b for a, b in zip(tangent, x.tangent, strict=True)]
    return Dual(value, tuple(tangent))


def add(a: Any, b: Any) -> Any:
    if isinstance(a, Dual) and isinstance(b, Dual):
        return Dual(a.value + b.value, tuple(map(add, a.tangent, b.tangent)))
    if isinstance(a, Dual):
        return Dual(a.value + b, a.tangent)
    return add(b, a) if isinstance(b, Dual) else a + b


def _reduced(statement: Statement, terms: list[Any]) -> Any:
    if statement.reduce in ("max", "min"):
        chosen = max if statement.reduce == "max" else min
        return chosen(terms, key=lambda x: x.value if isinstance(x, Dual) else x)
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


def carry_out(statements: tuple[Statement, ...], values: Values, sizes: dict[str, int]) -> None:
    """Run statements; an accumulated element that nothing wrote starts at zero."""
    for statement in statements:
        own, over = statement.free, statement.over
        for where in product(*(range(var.dim.evaluate(sizes)) for var in own)):
            env = dict(zip(own, where, strict=True))
            terms = []
            for inner in product(*(range(var.dim.evaluate(sizes)) for var in over)):
                full = {**env, **dict(zip(over, inner, strict=True))}
                terms.append(evaluate(statement.body, full, sizes, values))
            key = key_of(Load(statement.target, statement.index), env, sizes)
            result = _reduced(statement, terms)
            values[key] = (
                add(values[key], result) if statement.accumulate and key in values else (result)
            )
