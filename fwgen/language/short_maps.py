"""Maps on one line may leave their argument out: `phi: dpfp(nu=2)` is `phi(x): dpfp(x, nu=2)`."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from fwgen.language import tree
from fwgen.language.functions import FUNCTIONS


def completed(
    body: tuple[tree.Statement, ...], argument: str, maps: Container[str]
) -> tuple[tree.Statement, ...]:
    """A one-line body with the argument put in where a map stands bare or lacks it."""
    match body:
        case (tree.Evaluate(span, value),):
            return (tree.Evaluate(span, _complete(value, argument, maps)),)
    return body


def _complete(node: tree.Expression, argument: str, maps: Container[str]) -> tree.Expression:
    """The expression with every bare map, and every map that lacks its argument, called with it."""

    def inner(part: tree.Expression) -> tree.Expression:
        return _complete(part, argument, maps)

    match node:
        case tree.Name(span, name) if name != argument and _takes(name, maps):
            return tree.Call(span, node, (tree.Name(span, argument),), ())
        case tree.Call(_, function, (), _) if _takes(function.name, maps):
            return replace(node, arguments=(tree.Name(function.span, argument),))
        case tree.Call(_, _, arguments, _) if arguments:
            return replace(node, arguments=tuple(map(inner, arguments)))
        case tree.Each(_, element, _, _):
            return replace(node, element=inner(element))
        case tree.Binary(_, _, left, right):
            return replace(node, left=inner(left), right=inner(right))
        case tree.Unary(_, _, operand) | tree.Transpose(_, operand) | tree.Subscript(_, operand, _):
            return replace(node, operand=inner(operand))
    return node


def _takes(name: str, maps: Container[str]) -> bool:
    """Whether a name is a function whose first argument may be left out."""
    return name in maps or (name in FUNCTIONS and bool(FUNCTIONS[name].required))
