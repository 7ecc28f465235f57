"""Bring into the branches of a `select` what they read, so that its gradient is masked there.

    a[i] = log(x[i])
    y[i] = select(x[i] > 0, a[i], 0)

gives `x` exactly no gradient where x is 0, although d log/dx is infinite there: the mask has to
stand outside 1/x, so the logarithm has to stand inside the `select`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from fwgen.ir.nodes import Apply, Load, Scalar, Step, Var
from fwgen.ir.walk import rewrite, scalars, substitute

_NOT_FINITE = frozenset(["div", "log", "log1p", "sqrt", "rsqrt", "pow", "exp", "expm1"])
Known = dict[str, tuple[tuple[Var, ...], Scalar, Scalar]]
"""Definitions by name: variables, body, and the body with definitions brought in."""
_LARGEST = 200
"""Nodes of a branch beyond which nothing more is brought in."""


def guard(step: Step) -> Step:
    """The same step; branches hold the element-wise definitions whose derivative may be infinite.

    Sums stay outside. Arrays that are no longer read are left to a later pass.
    """
    count = Counter(statement.target for statement in step.statements)
    known: Known = {}
    statements = []
    for statement in step.statements:
        body = _guarded(statement.body, known)
        statements.append(replace(statement, body=body))
        plain = all(index.variable is not None for index in statement.index)
        if plain and count[statement.target] == 1 and statement.reduce is None:
            known[statement.target] = (statement.free, body, _inlined(body, known))
    return replace(step, statements=tuple(statements))


def _guarded(body: Scalar, known: Known) -> Scalar:
    if not isinstance(body, Apply):
        return body
    if body.op != "select":
        return Apply(body.op, tuple(_guarded(argument, known) for argument in body.args))
    condition, *branches = body.args
    return Apply("select", (condition, *(_inlined(branch, known) for branch in branches)))


def _inlined(branch: Scalar, known: Known) -> Scalar:
    def definition(node: Scalar) -> Scalar:
        if not isinstance(node, Load) or node.array not in known:
            return node
        free, *bodies = known[node.array]
        values = dict(zip(free, node.index, strict=True))
        for body in reversed(bodies):
            try:
                whole = substitute(body, values)
            except ValueError:  # an index with a modulo inside another index
                continue
            return whole if _risky(whole) else node
        return node

    result = rewrite(branch, definition)
    return result if sum(1 for _ in scalars(result)) <= _LARGEST else branch


def _risky(expression: Scalar) -> bool:
    """Whether it applies a function with an infinite derivative or value to something variable."""
    return any(
        isinstance(node, Apply)
        and node.op in _NOT_FINITE
        and any(isinstance(inner, Load) for inner in scalars(node))
        for node in scalars(expression)
    )
