"""Which states reach later states in other ways than by the factors that move them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fwgen.commands.report.motion import Link, motion
from fwgen.ir.nodes import Apply, Load, Scalar, Step


def entangled(step: Step) -> set[str]:
    """States that a new state depends on through its own factors, writes or a nonlinear update.

    The gradient of every other state comes from that state alone, by its factors transposed.
    """
    reached: dict[str, set[str]] = {s.old: {s.name} for s in step.states}
    for statement in step.statements:
        sources = _of(reached, _differentiable(statement.body))
        reached.setdefault(statement.target, set()).update(sources)
    found: set[str] = set()
    for state in step.states:
        links = motion(step, state)
        if links is None:
            found |= reached[state.new]
        else:
            found |= _of(
                reached, (a for k in links for f in _factors(k) for a in _differentiable(f))
            )
    return found


def _of(reached: dict[str, set[str]], arrays: Iterable[str]) -> set[str]:
    return {state for array in arrays for state in reached.get(array, ())}


def _differentiable(expression: Scalar) -> Iterator[str]:
    """Arrays that a gradient reaches: none behind `stop_gradient` or in a condition."""
    match expression:
        case Load(array):
            yield array
        case Apply("stop_gradient"):
            return
        case Apply("select", (_, taken, other)):
            yield from _differentiable(taken)
            yield from _differentiable(other)
        case Apply(_, args):
            for argument in args:
                yield from _differentiable(argument)


def _factors(link: Link) -> Iterator[Scalar]:
    """All factors of a link: of its decay, its erases and its writes."""
    yield from link.scale
    yield from link.wide
    for side in link.sides:
        yield from side
    for erase in link.erases:
        yield from (*erase.scale, *erase.query, *erase.write)
    for write in link.writes:
        yield from (*write.scale, *write.wide)
        for side in write.sides:
            yield from side
