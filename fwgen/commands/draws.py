"""How to draw each tensor of a rule for a test, judged by the formulas that read it."""

from __future__ import annotations

from collections.abc import Iterator

from fwgen.ir.nodes import Apply, Array, Load, Scalar, Step

Draws = tuple[tuple[str, str], ...]

_POSITIVE = {"log", "sqrt", "rsqrt", "pow"}
_SQUASHING = {"sigmoid", "logsigmoid", "tanh", "softplus"}


def draws(step: Step) -> Draws:
    """The kind of draw (see `fwgen.verify.draws`) of every input, param, buffer and state.

    An array directly inside exp is a log-decay, inside log or a root positive; an input that only
    sigmoids read may be anything; other scalars that are inputs are rates, the rest keys.
    """
    inside: dict[str, set[str]] = {}
    for statement in step.statements:
        for name, parent in _parents(statement.body, "statement"):
            inside.setdefault(name, set()).add(parent)
    states = {state.old: state.name for state in step.states}
    return tuple(
        (states.get(array.name, array.name), _kind(array, inside.get(array.name, set())))
        for array in step.arrays
        if array.role in ("input", "param", "buffer", "state")
    )


def _parents(body: Scalar, parent: str) -> Iterator[tuple[str, str]]:
    """Each array access with the operation directly around it."""
    if isinstance(body, Load):
        yield body.array, parent
    elif isinstance(body, Apply):
        for argument in body.args:
            yield from _parents(argument, body.op)


def _kind(array: Array, parents: set[str]) -> str:
    if not array.floating:
        return "flag"
    if array.role == "state":
        return "small"
    if "exp" in parents:
        return "decay"
    if parents & _POSITIVE:
        return "positive"
    if parents and parents <= _SQUASHING:
        return "normal"
    return "rate" if array.role == "input" and not array.dims else "key"
