"""Formulas as read: a small syntax tree whose every node knows its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fwgen.language.source import Span


@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    span: Span
    value: int | float


@dataclass(frozen=True, slots=True)
class String:
    """A literal text; only `einsum` takes one."""

    span: Span
    value: str


@dataclass(frozen=True, slots=True)
class Name:
    """A name that is read."""

    span: Span
    name: str


@dataclass(frozen=True, slots=True)
class Unary:
    """`-a`, or `not a`."""

    span: Span
    op: Literal["neg", "not"]
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """`a op b`; `op` is `matmul` or an operation of the IR (`add`, `mul`, `pow`, …)."""

    span: Span
    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Compare:
    """`a < b <= c`: each pair compared."""

    span: Span
    ops: tuple[str, ...]
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Logic:
    """`a and b and c`."""

    span: Span
    op: Literal["and", "or"]
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Transpose:
    """`a.T`."""

    span: Span
    operand: Expression


@dataclass(frozen=True, slots=True)
class Slice:
    """`start:stop` inside brackets; an absent bound is None."""

    span: Span
    start: Expression | None
    stop: Expression | None


@dataclass(frozen=True, slots=True)
class Subscript:
    """`a[i]`, `a[1:3]`, `a[i, 0:K]`: one item per axis, from the first."""

    span: Span
    operand: Expression
    items: tuple[Slice | Expression, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """`range(start, stop)`; `range(stop)` starts at 0."""

    span: Span
    start: Expression | None
    stop: Expression


@dataclass(frozen=True, slots=True)
class Each:
    """`element for variable in range(…)`, the only argument of `concat` or `stack`."""

    span: Span
    element: Expression
    variable: Name
    range: Range


@dataclass(frozen=True, slots=True)
class Call:
    """`function(arguments, keyword=…)`."""

    span: Span
    function: Name
    arguments: tuple[Expression, ...]
    keywords: tuple[tuple[Name, Expression], ...]


Expression = (
    Number | String | Name | Unary | Binary | Compare | Logic | Transpose | Subscript | Each | Call
)


@dataclass(frozen=True, slots=True)
class Assign:
    """`target = value`."""

    span: Span
    target: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class For:
    """`for variable in range: body`."""

    span: Span
    variable: Name
    range: Range
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Evaluate:
    """An expression that stands as a line of its own."""

    span: Span
    value: Expression


@dataclass(frozen=True, slots=True)
class Broken:
    """A line that was reported; `targets` are the names it seems to assign."""

    span: Span
    targets: tuple[str, ...]


Statement = Assign | For | Evaluate | Broken


def children(node: Expression | Slice | Range) -> tuple[Expression | Slice | Range, ...]:
    """The direct parts of an expression."""
    match node:
        case Unary(_, _, operand) | Transpose(_, operand):
            return (operand,)
        case Binary(_, _, left, right):
            return (left, right)
        case Compare(_, _, operands) | Logic(_, _, operands):
            return operands
        case Subscript(_, operand, items):
            return (operand, *items)
        case Slice(_, start, stop) | Range(_, start, stop):
            return tuple(part for part in (start, stop) if part is not None)
        case Each(_, element, _, counter):
            return (element, counter)
        case Call(_, _, arguments, keywords):
            return (*arguments, *(value for _, value in keywords))
        case _:
            return ()


def _parts(statement: Statement) -> list[Expression | Slice | Range | Statement]:
    match statement:
        case Assign(_, _, value) | Evaluate(_, value):
            return [value]
        case For(_, _, counter, body):
            return [counter, *body]
        case Broken():
            return []


def expressions(statements: tuple[Statement, ...]) -> list[Expression | Slice | Range]:
    """Every expression of a block, inner ones included."""
    found: list[Expression | Slice | Range] = []
    todo: list[Expression | Slice | Range | Statement] = list(statements)
    while todo:
        node = todo.pop()
        if isinstance(node, Assign | For | Evaluate | Broken):
            todo += _parts(node)
        else:
            found.append(node)
            todo += children(node)
    return found


def assignments(statements: tuple[Statement, ...]) -> list[Name]:
    """The targets of a block in order, inside loops too."""
    found: list[Name] = []
    for statement in statements:
        match statement:
            case Assign(_, target, _):
                found.append(target)
            case For(_, _, _, body):
                found += assignments(body)
            case Broken(span, names):
                found += [Name(span, name) for name in names]
    return found
