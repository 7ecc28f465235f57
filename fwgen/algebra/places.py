"""Where in the rule the term stands that keeps a state out of the classes with a chunk form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fwgen.algebra.classes import Transition
from fwgen.ir.nodes import State, Statement, Step

Classes = tuple[Transition, ...]


def placed(step: Step, found: Classes, classify: Callable[[Step], Classes]) -> Classes:
    """Transitions with the lines that are missing in `found`; `step` is the rule as lowered.

    What no statement says alone, as two decays along different axes, is placed at the line that
    brings it about: the first one up to which the update is in no class with a chunk form. The
    reason is that of this shorter update, so that it fits the line.
    """
    return tuple(t if t.line else _placed(step, t, classify) for t in found)


def _placed(step: Step, found: Transition, classify: Callable[[Step], Classes]) -> Transition:
    state = next(s for s in step.states if s.name == found.state)
    versions = _versions(step, state)
    first, last, stride = 0, len(versions) - 1, 1
    # Short updates are cheap to classify, so they come first; rounds of a loop share their lines.
    while len({version.line for version in versions[first : last + 1]}) > 1:
        middle = min(first + stride, (first + last) // 2)
        shorter = classify(_up_to(step, state, versions[middle].target))
        at = next(t for t in shorter if t.state == state.name)
        if at.reason is None:
            first, stride = middle + 1, 2 * stride
        else:
            last, found = middle, replace(found, reason=at.reason, line=at.line)
    return replace(found, line=found.line or versions[first].line)


def _versions(step: Step, state: State) -> list[Statement]:
    """The statements that assign the state in `update`, in order."""
    names = {a.name for a in step.arrays if a.role == "local" and a.of == state.name}
    return [s for s in step.statements if s.target in names or s.target == state.new]


def _up_to(step: Step, state: State, version: str) -> Step:
    """The step whose next state, and output, is an earlier version of the state."""
    states = tuple(replace(s, new=version) if s == state else s for s in step.states)
    return replace(step, states=states, output=version)
