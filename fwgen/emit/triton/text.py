"""Pieces of Python text that know how tightly they bind."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fwgen.ir.dims import Dim

COMPARE, OR, AND, ADD, MUL, UNARY, ATOM = range(7)


@dataclass(frozen=True, slots=True)
class Text:
    """An expression; `level` is the binding strength of its outermost operator."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text, in parentheses where its place binds tighter."""
        return self.text if self.level >= level else f"({self.text})"

    def __str__(self) -> str:
        return self.text


def call(function: str, *args: Text | str) -> Text:
    """`function(a, b)`."""
    return Text(f"{function}({', '.join(map(str, args))})")


def joined(operator: str, level: int, args: list[Text]) -> Text:
    """`a & b & c` of an associative operator; one argument stays as it is."""
    if len(args) == 1:
        return args[0]
    parts = [a.at(level if i == 0 else level + 1) for i, a in enumerate(args)]
    return Text(f" {operator} ".join(parts), level)


def binary(operator: str, level: int, a: Text, b: Text) -> Text:
    """`a - b`, left-associative; operands of comparisons are parenthesised comparisons."""
    left = level + 1 if level == COMPARE else level
    return Text(f"{a.at(left)} {operator} {b.at(level + 1)}", level)


def where(condition: Text, yes: Text, no: Text) -> Text:
    """`tl.where(condition, yes, no)`."""
    return call("tl.where", condition, yes, no)


def number(value: float) -> Text:
    """A float literal."""
    if math.isinf(value):
        return Text('float("-inf")' if value < 0 else 'float("inf")')
    if math.isnan(value):
        return Text('float("nan")')
    text = repr(float(value))
    return Text(text, UNARY if text.startswith("-") else ATOM)


def size(dim: Dim) -> Text:
    """A polynomial over the sizes' own names: `2 * K + 1`."""
    if not dim.terms:
        return Text("0")
    text, level = "", ATOM
    for names, coefficient in dim.terms:
        factors = [*names]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        if len(factors) > 1:
            level = MUL
        if text:
            text += " - " if coefficient < 0 else " + "
        elif coefficient < 0:
            text, level = "-", UNARY
        text += " * ".join(factors)
    return Text(text, ADD if len(dim.terms) > 1 else level)


def product(dims: tuple[Dim, ...]) -> Text:
    """The number of elements of an array; `1` for a scalar."""
    total = Dim.of(1)
    for dim in dims:
        total = total * dim
    return size(total)


def times(factor: Dim, text: Text) -> Text:
    """An index expression times a size."""
    if factor.constant == 1:
        return text
    if factor.constant == -1:
        return Text(f"-{text.at(UNARY)}", UNARY)
    return binary("*", MUL, text, size(factor))


def plus(text: Text, offset: Dim) -> Text:
    """An index expression plus a size, written as a difference for a negative one."""
    if not offset.terms:
        return text
    if all(c < 0 for _, c in offset.terms):
        return binary("-", ADD, text, size(-offset))
    return binary("+", ADD, text, size(offset))
