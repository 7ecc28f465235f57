"""Sums of products: scalar expressions taken apart and put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fwgen.ir.nodes import Apply, Const, Scalar


@dataclass(frozen=True, slots=True)
class Term:
    """A signed product of factors."""

    negative: bool
    factors: tuple[Scalar, ...]


def terms(expression: Scalar, negative: bool = False) -> list[Term]:
    """The top-level sum of an expression; products are flattened, nothing is expanded."""
    match expression:
        case Apply("add", args):
            return [term for arg in args for term in terms(arg, negative)]
        case Apply("sub", (left, right)):
            return [*terms(left, negative), *terms(right, not negative)]
        case Apply("neg", (inner,)):
            return terms(inner, not negative)
        case _:
            sign, factors = _factors(expression)
            return [Term(negative != sign, factors)]


def _factors(expression: Scalar) -> tuple[bool, tuple[Scalar, ...]]:
    match expression:
        case Apply("mul", args):
            parts = [_factors(arg) for arg in args]
            sign = sum(part[0] for part in parts) % 2 == 1
            return sign, tuple(factor for part in parts for factor in part[1])
        case Apply("neg", (inner,)):
            sign, factors = _factors(inner)
            return not sign, factors
        case _:
            return False, (expression,)


def product(factors: Sequence[Scalar]) -> Scalar:
    """The product of factors without ones; 1 when there are none."""
    kept = [f for f in factors if f not in (Const(1), Const(1.0))]
    if not kept:
        return Const(1.0)
    return kept[0] if len(kept) == 1 else Apply("mul", tuple(kept))


def total(parts: Sequence[Term]) -> Scalar:
    """The sum of signed terms; 0 when there are none."""
    if not parts:
        return Const(0.0)
    result: Scalar | None = None
    for term in sorted(parts, key=lambda t: t.negative):
        value = product(term.factors)
        if result is None:
            result = Apply("neg", (value,)) if term.negative else value
        elif term.negative:
            result = Apply("sub", (result, value))
        elif isinstance(result, Apply) and result.op == "add":
            result = Apply("add", (*result.args, value))
        else:
            result = Apply("add", (result, value))
    assert result is not None
    return result
