"""Vectors and matrices whose norm is at most 1 by the way they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fwgen.commands.report.bounds import Bounds
from fwgen.ir.nodes import Apply, Const, Index, Load, Scalar, Statement
from fwgen.ir.walk import substitute, variables

Definitions = Mapping[str, Sequence[Statement]]


def at_most_one(name: str, bounds: Bounds) -> bool:
    """Whether an array has Euclidean norm at most 1: x / |x|, or non-negative x / sum(x).

    Positive constants below the line only make it smaller.
    """
    statement = _single(name, bounds.definitions)
    if statement is None or statement.reduce is not None:
        return False
    match statement.body:
        case Load(other, index) if index == statement.index:
            return at_most_one(other, bounds)
        case Apply("mul", (Load() as x, Apply("rsqrt", (below,)))) if _whole(x, statement):
            return _sums(_without_constants(below, bounds), Apply("square", (x,)), bounds)
        case Apply("div", (Load() as x, below)) if _whole(x, statement):
            total = _without_constants(below, bounds)
            return bounds.of(x).low >= 0 and _sums(total, x, bounds)
    return False


def clipped(name: str, bounds: Bounds) -> bool:
    """Whether an array is X / maximum(1, |X|), with |X| the root of the sum of squares."""
    statement = _single(name, bounds.definitions)
    if statement is None or statement.reduce is not None:
        return False
    match statement.body:
        case Apply("div", (Load() as x, Apply("maximum", args))) if x.index == statement.index:
            square = Apply("square", (x,))
            return any(_sums(_squared(argument), square, bounds) for argument in args)
    return False


def _whole(load: Load, statement: Statement) -> bool:
    """Whether a vector is read element by element, perhaps as a row of a matrix."""
    return [index for index in load.index if index.terms] == list(statement.index)


def _single(name: str, definitions: Definitions) -> Statement | None:
    found = definitions.get(name, ())
    return found[0] if len(found) == 1 else None


def _squared(expression: Scalar) -> Scalar | None:
    """n of sqrt(n), also where it is written so that its derivative at 0 is 0."""
    match expression:
        case Apply("sqrt", (inner,)):
            return inner
        case Apply("select", (_, Apply("sqrt", (inner,)), Const(0))):
            return inner
    return None


def _without_constants(expression: Scalar, bounds: Bounds) -> Scalar | None:
    """The one term that is no constant of a sum whose constants are not negative."""
    match expression:
        case Apply("add", args):
            rest = [a for a in args if not isinstance(a, Const)]
            positive = all(bounds.of(a).low >= 0 for a in args if isinstance(a, Const))
            return rest[0] if len(rest) == 1 and positive else None
    return expression


def _sums(total: Scalar | None, term: Apply | Load, bounds: Bounds) -> bool:
    """Whether `total` is the sum of `term` over all of its variables."""
    if not isinstance(total, Load) or total.index:
        return False
    statement = _single(total.array, bounds.definitions)
    if statement is None or statement.reduce != "sum":
        return False
    x = term if isinstance(term, Load) else term.args[0]
    assert isinstance(x, Load)
    own = variables(x)
    whole = all(index.variable is not None or not index.terms for index in x.index)
    if not whole or len(statement.over) != len(own):
        return False
    for order in (statement.over, tuple(reversed(statement.over))):
        places = {v: Index.of(w) for v, w in zip(own, order, strict=True)}
        if statement.body == substitute(term, places):
            return True
    return False
