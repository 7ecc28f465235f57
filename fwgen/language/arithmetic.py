"""Operators whose right side is a constant or a size: `**` and `%`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fwgen.language import tree
from fwgen.language.values import Value

if TYPE_CHECKING:
    from fwgen.language.evaluate import Evaluator

MOST_FACTORS = 8
"""Powers of integers up to here are integers: products of so many factors."""


def power(ev: Evaluator, node: tree.Binary, base: Value, exponent: Value) -> Value | None:
    """`x ** n` with a constant exponent."""
    n = exponent.constant
    if n is None:
        hint = "for a positive base write `exp(y * log(x))`"
        ev.error(node.right.span, "the exponent is not a constant", hint)
        return None
    if base.constant is not None:
        return ev.combine("pow", node.span, base, exponent)
    if n == 1:
        return base
    if base.kind == "int" and isinstance(n, int) and 1 < n <= MOST_FACTORS:
        result: Value | None = base
        for _ in range(n - 1):
            result = ev.combine("mul", node.span, result, base)
        return result
    if n == 2:
        return ev.combine("square", node.span, base)
    return ev.combine("pow", node.span, base, exponent)


def remainder(ev: Evaluator, node: tree.Binary, left: Value, right: Value) -> Value | None:
    """`t % n` of integers, with a right side that is at least 1 in every call."""
    if left.kind != "int" or right.kind != "int":
        ev.error(node.span, "`%` is for integers: token positions, sizes, constants")
        return None
    size = ev.integer(node.right)
    if size is None:
        return None
    if not ev.builder.require(size - 1):
        ev.error(node.right.span, "the right side of `%` is at least 1")
        return None
    return ev.combine("mod", node.span, left, right)
