"""Work and traffic per token and head, as polynomials in the rule's dims."""

from __future__ import annotations

from collections.abc import Iterable

from fwgen.ir.dims import ONE, ZERO, Dim
from fwgen.ir.nodes import Apply, Array, Backward, Scalar, Statement, Step
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


def flops(statements: Iterable[Statement]) -> Dim:
    """Floating-point operations of one token; a function such as exp counts as one."""
    total = ZERO
    for statement in statements:
        count = _operations(statement.body) + bool(statement.reduce) + statement.accumulate
        domain = elements(var.dim for var in (*statement.free, *statement.over))
        total = total + domain * count
    return total


def _operations(body: Scalar) -> int:
    nodes = (node for node in scalars(body) if isinstance(node, Apply))
    return sum(
        max(1, len(node.args) - 1)
        for node in nodes
        if OPS[node.op].kind != "bool" and node.op not in _FREE
    )


def bytes_forward(step: Step) -> Dim:
    """What one token must read and write in float32: its inputs and its output."""
    arrays = [a for a in step.arrays if a.role == "input"]
    return _bytes([*arrays, step.array(step.output)])


def bytes_backward(backward: Backward) -> Dim:
    """What one token of the backward must read and write: inputs, their gradients, that of y."""
    step = backward.forward
    arrays = [a for a in step.arrays if a.role == "input"]
    return _bytes([*arrays, *arrays, step.array(step.output)])


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
