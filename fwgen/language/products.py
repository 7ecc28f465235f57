"""Linear algebra: `@`, `outer`, `dot`, `diag`, `eye`, `einsum` as products and sums."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Apply, Const, Index, IndexValue, Scalar, Var
from fwgen.ir.walk import substitute
from fwgen.language.source import Span
from fwgen.language.values import ONE, Value, apply, is_cheap, product

if TYPE_CHECKING:
    from fwgen.language.evaluate import Evaluator

MOST_PRODUCTS = 12
"""Products of addends that one product of matrices is spread into, for its diagonal ones' sake."""


def matmul(ev: Evaluator, span: Span, a: Value, b: Value) -> Value | None:
    """`a @ b` by position: the last axis of `a` with the first of `b`."""
    if a.view is not None or b.view is not None:
        ev.error(span, "a view cannot be multiplied with `@`", "use `*` with a matrix")
        return None
    orders = (len(a.axes), len(b.axes))
    if orders not in ((2, 1), (1, 2), (2, 2)):
        hints = {(1, 1): "`dot(a, b)` is the inner product, `outer(a, b)` the outer one"}
        hint = "use `*` with a scalar" if 0 in orders else hints.get(orders, "use `einsum`")
        message = f"`@` multiplies matrices and vectors, not {ev.shape(a)} and {ev.shape(b)}"
        ev.error(span, message, hint)
        return None
    what = f"{ev.shape(a)} @ {ev.shape(b)}: the inner sizes differ"
    if not ev.same(span, a.axes[-1].dim, b.axes[0].dim, what):
        return None
    a, b = once(ev, ev.shallow(a)), once(ev, ev.shallow(b))
    keep = (*a.axes[:-1], *b.axes[1:])
    pairs = [(s, t) for s in addends(a) for t in addends(b)]
    if len(pairs) > MOST_PRODUCTS:
        pairs = [(a, b)]
    parts = [_product(ev, s, t, keep) for s, t in pairs]
    depth, size = 2 + max(a.depth, b.depth), len(parts) * (a.size + b.size)
    return Value(keep, reduce(partial(apply, "add"), parts), depth=depth, size=size)


def _product(ev: Evaluator, a: Value, b: Value, keep: tuple[Var, ...]) -> Scalar:
    """The product of two addends over the axes that stay; diagonal ones need no sum."""
    left, right = entries(a), entries(b)
    if left is not None and right is not None:
        inside = apply("mul", left, Value(b.axes[:1], right).over(a.axes[:1]))
        return on_diagonal(keep[0], keep[1], inside)
    if right is not None:
        scale = Value(b.axes[:1], right).over(keep[-1:])
        return apply("mul", a.over((*a.axes[:-1], keep[-1])), scale)
    if left is not None:
        return apply("mul", left, b.over((a.axes[0], *b.axes[1:])))
    body = product([a.body, b.over((a.axes[-1], *b.axes[1:]))])
    return ev.builder.reduce(body, keep, a.axes[-1:], "sum", "p").over(keep)


def addends(value: Value) -> list[Value]:
    """The terms of a sum that has a diagonal matrix in it, else the value itself."""
    if len(value.axes) != 2:
        return [value]
    parts = [replace(value, body=body) for body in _terms(value.body)]
    return parts if any(entries(part) is not None for part in parts) else [value]


def _terms(body: Scalar) -> list[Scalar]:
    match body:
        case Apply("add", args):
            return [term for arg in args for term in _terms(arg)]
        case Apply("sub", (a, b)):
            return _terms(a) + [apply("neg", term) for term in _terms(b)]
        case Apply("neg", (a,)):
            return [apply("neg", term) for term in _terms(a)]
        case Apply("mul", args):
            for place, arg in enumerate(args):
                if isinstance(arg, Apply) and arg.op in ("add", "sub"):
                    before, after = args[:place], args[place + 1 :]
                    return [product([*before, term, *after]) for term in _terms(arg)]
    return [body]


def entries(value: Value) -> Scalar | None:
    """The entries of a diagonal matrix over its first axis; None where it is not one."""
    return _entries(value.body, value.axes) if len(value.axes) == 2 else None


def _entries(body: Scalar, axes: tuple[Var, ...]) -> Scalar | None:
    row, column = axes
    match body:
        case Apply("select", (Apply("eq", (IndexValue(a), IndexValue(b))), inside, Const(0))):
            here = {a.variable, b.variable} == {row, column}
            return substitute(inside, {column: Index.of(row)}) if here else None
        case Apply("neg", (a,)):
            found = _entries(a, axes)
            return None if found is None else apply("neg", found)
        case Apply("mul", args):
            for place, arg in enumerate(args):
                found = _entries(arg, axes)
                if found is not None:
                    whole = product([*args[:place], found, *args[place + 1 :]])
                    return substitute(whole, {column: Index.of(row)})
    return None


def once(ev: Evaluator, value: Value) -> Value:
    """A vector that meets a matrix, stored where recomputing it for every row would cost."""
    if len(value.axes) != 1 or is_cheap(value):
        return value
    return ev.builder.store(value, "u")


def outer(ev: Evaluator, span: Span, a: Value, b: Value) -> Value | None:
    """The matrix `a[i] * b[j]`."""
    for value in (a, b):
        if not vector(ev, span, value, "`outer` multiplies two vectors"):
            return None
    a, b = once(ev, a), once(ev, b)
    body = apply("mul", a.body, b.body)
    depth, size = 1 + max(a.depth, b.depth), 1 + a.size + b.size
    return Value((*a.axes, *b.axes), body, depth=depth, size=size)


def dot(ev: Evaluator, span: Span, a: Value, b: Value) -> Value | None:
    """The number `sum a[i] * b[i]`."""
    for value in (a, b):
        if not vector(ev, span, value, "`dot` multiplies two vectors"):
            return None
    what = f"dot of {ev.shape(a)} and {ev.shape(b)}: the sizes differ"
    if not ev.same(span, a.axes[0].dim, b.axes[0].dim, what):
        return None
    body = apply("mul", a.body, b.over(a.axes))
    return ev.builder.reduce(body, (), a.axes, "sum", "s")


def vector(ev: Evaluator, span: Span, value: Value, what: str) -> bool:
    """Whether a value is a vector and no view; reports where not."""
    if len(value.axes) == 1 and value.view is None:
        return True
    shape = f"a view of {ev.shape(value)}" if value.view else ev.shape(value)
    ev.error(span, f"{what}, not {shape}")
    return False


def diag(ev: Evaluator, vector: Value) -> Value:
    """The diagonal matrix of a vector."""
    row, column = vector.axes[0], ev.builder.axis(vector.axes[0].dim)
    body = on_diagonal(row, column, vector.body)
    return Value((row, column), body, depth=2 + vector.depth, size=2 + vector.size)


def eye(ev: Evaluator, size: Dim) -> Value:
    """The unit matrix."""
    row, column = ev.builder.axis(size), ev.builder.axis(size)
    return Value((row, column), on_diagonal(row, column, ONE), depth=2)


def on_diagonal(row: Var, column: Var, inside: Scalar) -> Scalar:
    """`inside` where two variables are equal, else 0."""
    here = apply("eq", IndexValue(Index.of(row)), IndexValue(Index.of(column)))
    return apply("select", here, inside, Const(0))


def einsum(ev: Evaluator, span: Span, spec: str, operands: list[Value]) -> Value | None:
    """`"ijk,i,j->k"`: a product of accesses, summed over the letters that the result lacks."""
    left, arrow, result = spec.replace(" ", "").partition("->")
    groups = left.split(",")
    if fault := _fault(ev, groups, arrow, result, operands):
        ev.error(span, f"einsum `{spec}`: {fault}")
        return None
    letters: dict[str, Var] = {}
    factors = []
    operands = [ev.shallow(value) for value in operands]
    for group, value in zip(groups, operands, strict=True):
        for letter, axis in zip(group, value.axes, strict=True):
            known = letters.setdefault(letter, axis)
            what = f"einsum `{spec}`: sizes of `{letter}` differ"
            if not ev.same(span, known.dim, axis.dim, what):
                return None
        factors.append(value.over([letters[letter] for letter in group]))
    keep = tuple(letters[letter] for letter in result)
    over = tuple(axis for letter, axis in letters.items() if letter not in result)
    found = ev.builder.reduce(product(factors), keep, over, "sum", "p")
    return replace(found, size=sum(value.size for value in operands))


def _fault(
    ev: Evaluator, groups: list[str], arrow: str, result: str, operands: list[Value]
) -> str | None:
    if not arrow:
        return "the result is missing; write `->` and its letters"
    for group in (*groups, result):
        if not all("a" <= letter <= "z" for letter in group):
            return f"`{group}` is not made of the letters a to z"
        if len(set(group)) < len(group):
            return f"a letter is repeated in `{group}`"
    if len(groups) != len(operands):
        return f"{len(groups)} operands are named, {len(operands)} given"
    for group, value in zip(groups, operands, strict=True):
        if value.view is not None:
            return "a view cannot be an operand"
        if len(group) != len(value.axes):
            return f"`{group}` names {len(group)} axes of {ev.shape(value)}"
    if missing := set(result) - set("".join(groups)):
        return f"`{min(missing)}` of the result is in no operand"
    return None
