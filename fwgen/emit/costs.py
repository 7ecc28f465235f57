"""Work and traffic per token and head, as polynomials in the rule's dims."""

from __future__ import annotations

from collections.abc import Iterable

from fwgen.ir.dims import ONE, ZERO, Dim
from fwgen.ir.nodes import Apply, Array, Backward, Load, Position, Scalar, Statement, Step
from fwgen.ir.ops import OPS
from fwgen.ir.walk import scalars

_FREE = {"select", "stop_gradient", "neg"}
FLOAT = 4
"""Bytes of a float32."""


def elements(dims: Iterable[Dim]) -> Dim:
    """The number of elements of an array."""
    total = ONE
    for dim in dims:
        total = total * dim
    return total


def flops(statements: Iterable[Statement], incoming: Iterable[str] = ()) -> Dim:
    """Floating-point operations of one token: a multiply-add is two, a function such as exp one.

    Signs, comparisons and what only depends on sizes are free.

    A sum is an addition per term. What is first added to an array that starts at zero is no
    addition; the arrays `incoming` start with something.
    """
    total, started = ZERO, set(incoming)
    for statement in statements:
        domain = elements(var.dim for var in (*statement.free, *statement.over))
        count = _operations(statement.body) + bool(statement.reduce)
        if statement.accumulate and not statement.reduce:
            count += statement.target in started
        started.add(statement.target)
        total = total + domain * count
    return total


def flops_backward(backward: Backward) -> Dim:
    """The work of the adjoint of one token, what it needs of the forward being at hand."""
    return flops(backward.statements, (seed for _, seed in backward.seeds))


def _operations(body: Scalar) -> int:
    nodes = (node for node in scalars(body) if isinstance(node, Apply))
    return sum(
        max(1, len(node.args) - 1)
        for node in nodes
        if OPS[node.op].kind != "bool" and node.op not in _FREE and _varies(node)
    )


def _varies(expression: Scalar) -> bool:
    """Whether an expression depends on the token: what holds for a whole call costs nothing."""
    return any(isinstance(node, Load | Position) for node in scalars(expression))


def bytes_forward(step: Step) -> Dim:
    """What one token must read and write in float32: its inputs and its output."""
    arrays = [a for a in step.arrays if a.role == "input"]
    return _bytes([*arrays, step.array(step.output)])


def bytes_backward(backward: Backward) -> Dim:
    """What one token of the backward must read and write: inputs, their gradients, that of y."""
    step = backward.forward
    arrays = [a for a in step.arrays if a.role == "input"]
    wanted = {name for name, adjoint in backward.results if adjoint is not None}
    gradients = [a for a in arrays if a.name in wanted]
    return _bytes([*arrays, *gradients, step.array(step.output)])


def state_elements(step: Step) -> Dim:
    """Elements of all carried states of one head."""
    total = ZERO
    for state in step.states:
        total = total + elements(step.array(state.old).dims)
    return total


def _bytes(arrays: Iterable[Array]) -> Dim:
    total = ZERO
    for array in arrays:
        total = total + elements(array.dims) * FLOAT
    return total
