"""Whether the stages of a step may be written in chunk form, else the first reason why not."""

from __future__ import annotations

from collections.abc import Iterable

from fwgen.algebra.affine import factors
from fwgen.algebra.classes import AXES, Transition
from fwgen.ir.nodes import Load, State, Statement, Step
from fwgen.ir.walk import loads, reads

MOST_ROUNDS = 2


def chunk_obstacle(
    step: Step, transitions: tuple[Transition, ...]
) -> tuple[str, int] | tuple[None, None]:
    """The first reason, with its line, why a step in normal form has no chunk form, or None.

    A chunk form needs matrix states of order 2 whose class has one, read along one axis (not the
    axis that a decay leaves alone), and small states that no read feeds whose query they feed.
    """
    matrices = {s.name: s for s in step.states if len(step.array(s.old).dims) > 1}
    if not matrices:
        return "the rule has no matrix state, so there is nothing to gain", transitions[0].line
    for transition in sorted(transitions, key=lambda t: t.component):
        if transition.state in matrices and transition.reason is not None:
            return transition.reason, transition.line
    ancestry = _Ancestry(step)
    for transition in transitions:
        if transition.state in matrices:
            found = _read_obstacle(step, matrices[transition.state], transition, ancestry)
            if found is not None:
                return found
    return _scan_obstacle(step, transitions, matrices, ancestry) or (None, None)


class _Ancestry:
    """Per array, everything that it is computed from within the token, itself included."""

    def __init__(self, step: Step) -> None:
        self.of = {array.name: frozenset({array.name}) for array in step.arrays}
        for statement in step.statements:
            parts = [self.of[name] for name in reads(statement)]
            self.of[statement.target] = self.of[statement.target].union(*parts)


def _uses(step: Step, state: State) -> list[Statement]:
    """The statements that access the state, its own update left out."""
    names = {state.old, state.new}
    return [s for s in step.statements if s.target != state.new and names.intersection(reads(s))]


def _contracted(statement: Statement, state: State) -> int | None:
    """The axis that a plain read of the state sums over, None if it is no plain read."""
    negative, items = factors(statement.body)
    own = [i for i in items if isinstance(i, Load) and i.array in (state.old, state.new)]
    if statement.reduce != "sum" or len(statement.over) != 1 or len(own) != 1 or negative:
        return None
    touched = sum(load.array in (state.old, state.new) for load in loads(statement.body))
    axes = [index.variable for index in own[0].index]
    if touched != 1 or None in axes or statement.over[0] not in axes or len(axes) != 2:
        return None
    return axes.index(statement.over[0])


def _read_obstacle(
    step: Step, state: State, transition: Transition, ancestry: _Ancestry
) -> tuple[str, int] | None:
    rounds: dict[str, int] = {}
    axes: dict[int, int] = {}
    for statement in _uses(step, state):
        axis = _contracted(statement, state)
        if axis is None:
            return f"the state {state.name} is used in another way than by a read", statement.line
        axes.setdefault(axis, statement.line)
        if transition.axis is not None and AXES[axis] != transition.axis:
            return f"read along the axis of the decay of {state.name}", statement.line
        query = _parents(statement, state, ancestry)
        earlier = [count for name, count in rounds.items() if name in query]
        rounds[statement.target] = 1 + max(earlier, default=0)
        if rounds[statement.target] > MOST_ROUNDS:
            return f"more than two reads of {state.name} that need each other", statement.line
    if len(axes) > 1:
        return f"the state {state.name} is read along both axes", axes[0]
    return None


def _parents(statement: Statement, state: State, ancestry: _Ancestry) -> frozenset[str]:
    """What the query of a read is computed from."""
    names = [name for name in reads(statement) if name not in (state.old, state.new)]
    return _union(ancestry.of[name] for name in names)


def _union(parts: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*parts)


def _scan_obstacle(
    step: Step,
    transitions: tuple[Transition, ...],
    matrices: dict[str, State],
    ancestry: _Ancestry,
) -> tuple[str, int] | None:
    """A small state that needs a read whose query needs the state: no scan over a chunk."""
    component = {t.state: t.component for t in transitions}
    for small in step.states:
        if small.name in matrices:
            continue
        own = {s.old for s in step.states if component[s.name] == component[small.name]}
        for matrix in matrices.values():
            for statement in _uses(step, matrix):
                feeds = statement.target in ancestry.of[small.new]
                if feeds and own & _parents(statement, matrix, ancestry):
                    return (
                        f"the state {small.name} feeds back through a read of {matrix.name}",
                        statement.line,
                    )
    return None
