"""Questions about scalar expressions and statements, and rewriting them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Apply, Const, Index, IndexValue, Load, Scalar, Statement, Var


def scalars(expression: Scalar) -> Iterator[Scalar]:
    """Every node of a scalar expression, parents first."""
    todo = [expression]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, Apply):
            todo += reversed(node.args)


def loads(expression: Scalar) -> list[Load]:
    """The element accesses of an expression, in order, repeated ones included."""
    found: list[Load] = []
    todo = [expression]
    while todo:
        node = todo.pop()
        if isinstance(node, Load):
            found.append(node)
        elif isinstance(node, Apply):
            todo += reversed(node.args)
    return found


def reads(statement: Statement) -> list[str]:
    """Names of the arrays that a statement reads, each once, in order."""
    return list(dict.fromkeys(load.array for load in loads(statement.body)))


def variables(expression: Scalar) -> list[Var]:
    """The index variables of an expression, each once, in order."""
    found: dict[Var, None] = {}
    for node in scalars(expression):
        indices = node.index if isinstance(node, Load) else ()
        if isinstance(node, IndexValue):
            indices = (node.index,)
        for index in indices:
            found.update(dict.fromkeys(var for _, var in index.terms))
    return list(found)


def rewrite(expression: Scalar, change: Callable[[Scalar], Scalar]) -> Scalar:
    """Apply `change` to every node, children first."""
    if isinstance(expression, Apply):
        args = tuple(rewrite(argument, change) for argument in expression.args)
        if args != expression.args:
            expression = Apply(expression.op, args)
    return change(expression)


def substitute_index(index: Index, values: Mapping[Var, Index]) -> Index:
    """Replace variables of an index expression by index expressions without modulo.

    A variable whose replacement has a modulo may only stand alone with coefficient one.
    """
    if (plain := index.variable) is not None:
        return values.get(plain, index)
    terms: dict[Var, Dim] = {}
    offset = index.offset
    for coefficient, var in index.terms:
        inner = values.get(var, Index.of(var))
        if inner.modulo is not None:
            raise ValueError(f"modulo inside an index expression of {var.name}")
        offset = offset + coefficient * inner.offset
        for factor, name in inner.terms:
            terms[name] = terms.get(name, Dim()) + coefficient * factor
    kept = tuple((coefficient, var) for var, coefficient in terms.items() if coefficient.terms)
    return Index(kept, offset, index.modulo)


def substitute(expression: Scalar, values: Mapping[Var, Index]) -> Scalar:
    """Replace index variables in every access of an expression."""

    def change(node: Scalar) -> Scalar:
        match node:
            case Load(array, index):
                return Load(array, tuple(substitute_index(i, values) for i in index))
            case IndexValue(index):
                return IndexValue(substitute_index(index, values))
            case _:
                return node

    return rewrite(expression, change)


def rename(statement: Statement, names: Mapping[str, str]) -> Statement:
    """Rename arrays, target and accesses alike."""

    def change(node: Scalar) -> Scalar:
        if isinstance(node, Load) and node.array in names:
            return Load(names[node.array], node.index)
        return node

    body = rewrite(statement.body, change)
    return replace(statement, target=names.get(statement.target, statement.target), body=body)


def is_constant(expression: Scalar, value: float) -> bool:
    """Whether an expression is literally that number."""
    return isinstance(expression, Const) and expression.value == value
