"""A key under which equal statements are equal whatever their variables' names."""

from __future__ import annotations

from fwgen.ir.nodes import Apply, Index, Scalar, Statement, Var
from fwgen.ir.walk import rewrite, substitute, substitute_index


def statement_key(statement: Statement) -> str:
    """Equal for statements that compute the same array, whatever their variables are called.

    Sums and products are equal in any order of their arguments.
    """
    own = (*statement.free, *statement.over)
    names = {var: Index.of(Var(f"_{n}", var.dim)) for n, var in enumerate(own)}
    index = tuple(substitute_index(i, names) for i in statement.index)
    body = rewrite(substitute(statement.body, names), _sorted_arguments)
    return repr((index, len(statement.over), statement.reduce, body))


def _sorted_arguments(node: Scalar) -> Scalar:
    if isinstance(node, Apply) and node.op in ("add", "mul"):
        return Apply(node.op, tuple(sorted(node.args, key=repr)))
    return node
