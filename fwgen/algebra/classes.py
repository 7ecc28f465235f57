"""The transition class of every state, by the structure of its update in normal form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fwgen.algebra.affine import Part
from fwgen.algebra.dependence import (
    AFFINE_LEVEL,
    FREE_LEVEL,
    NONLINEAR_LEVEL,
    Dependence,
    Dependences,
)
from fwgen.algebra.logdecay import definitions_of, expanded_parts
from fwgen.algebra.stages import components
from fwgen.ir.nodes import Apply, Load, Scalar, State, Statement, Step, Var
from fwgen.ir.walk import variables

Kind = Literal[
    "identity",
    "scalar decay",
    "diagonal decay",
    "elementwise decay",
    "identity plus low rank",
    "scalar decay plus low rank",
    "diagonal plus low rank",
    "affine",
    "running max",
    "nonlinear",
]
Axis = Literal["key", "value"]
AXES: tuple[Axis, Axis] = ("value", "key")


@dataclass(frozen=True, slots=True)
class Transition:
    """How a state moves.

    `axis`: the axis that a diagonal decay or a correction acts along, None where it doesn't matter.
    `rank`: the number of writes that read the state. `component`: the stage, in topological order.
    `line`: the rule's line of the offending term, else of the update; 0 until the place of a term
    is found (see `places`). `reason` is None for the classes that a chunk form exists for, else it
    names the first offending term.
    """

    state: str
    kind: Kind
    axis: Axis | None
    rank: int
    component: int
    line: int
    reason: str | None


class _Obstacle(Exception):  # noqa: N818 - control flow inside this file
    """The update is not in a class with a known structure. `line` 0: no statement alone says so."""

    def __init__(self, kind: Kind, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.line = kind, reason, line


def transitions(step: Step, written: Step) -> tuple[Transition, ...]:
    """The class of every state of a step in normal form, in the order of `step.states`.

    `written` is the step that the normal form was made from: expanding and merging statements loses
    lines, so a term that stands in the way is named and placed as it is written there.
    """
    found: dict[str, Transition] = {}
    for number, members in enumerate(components(step)):
        stage = _Stage(step, written, members)
        found.update({name: stage.transition(name, number) for name in members})
    return tuple(found[state.name] for state in step.states)


class _Stage:
    """States that feed each other."""

    def __init__(self, step: Step, written: Step, members: tuple[str, ...]) -> None:
        self.step, self.members = step, members
        self.states = {s.name: s for s in step.states if s.name in members}
        self.dependences = Dependences(step, members)
        self.written = Dependences(written, members)
        self.definitions = definitions_of(step)

    def transition(self, name: str, component: int) -> Transition:
        try:
            self._check_nonlinear(name)
            kind, axis, rank = self._structure(self.states[name])
        except _Obstacle as found:
            return Transition(name, found.kind, None, 0, component, found.line, found.reason)
        line = self._update(self.states[name]).line
        return Transition(name, kind, axis, rank, component, line, None)

    def _update(self, state: State) -> Statement:
        return next(s for s in reversed(self.step.statements) if s.target == state.new)

    def _check_nonlinear(self, name: str) -> None:
        """A stage is nonlinear as a whole."""
        for other in dict.fromkeys((name, *self.members)):
            found = self.dependences.arrays[self.states[other].new]
            if found.level < NONLINEAR_LEVEL:
                continue
            written = self.written.arrays[self.states[other].new]
            if written.level == NONLINEAR_LEVEL:
                found = replace(found, reason=written.reason, line=written.line)
            if found.form == "max" and len(self.members) == 1:
                raise _Obstacle("running max", "a running maximum is a scan", found.line)
            reason = found.reason
            if other != name or (found.state and found.state != name):
                reason += f", which feeds back into the update of {name}"
            raise _Obstacle("nonlinear", reason, found.line)

    def _affine(self, state: State, found: Dependence) -> _Obstacle:
        """The obstacle that a dependence of the affine level is."""
        written, line = self.written.arrays[state.new], found.line
        if found.reason and written.reason == found.reason:
            line = written.line
        elif line == self._update(state).line:
            line = 0  # the update holds what several lines wrote
        return _Obstacle("affine", found.reason or self._uses(state), line)

    def _structure(self, state: State) -> tuple[Kind, Axis | None, int]:
        """Class, axis and rank of an affine update; raises _Obstacle for the affine top."""
        order = len(self.step.array(state.old).dims)
        if len(self.members) > 1:
            names = " and ".join(self.members)
            raise _Obstacle("affine", f"the states {names} feed each other")
        if order > 2:
            raise _Obstacle("affine", f"the state {state.name} has {order} axes")
        parts = expanded_parts(self.step, state.name)
        if parts is None:
            reason = f"the update of {state.name} moves its elements or sums over one of its axes"
            raise _Obstacle("affine", reason)
        own = [p for p in parts if p.base is not None and p.base.array == state.old]
        writes = [part for part in parts if part not in own]
        self._check_decay(state, own, writes)
        erases = [axis for part in writes for axis in self._erase_axes(part, state)]
        return self._named(state, own, erases)

    def _check_decay(self, state: State, own: list[Part], writes: list[Part]) -> None:
        """The decay is one product over at most one axis."""
        axes = {v for part in own for factor in part.narrow for v in variables(factor)}
        if len(own) <= 1 and len(axes) <= 1 and not any(part.wide for part in own):
            return
        reason = f"the decay of {state.name} does not act along one axis alone"
        items = [f for p in writes for f in (*p.narrow, *p.wide, *([p.base] if p.base else []))]
        bound = any(self.dependences.scalar(item).level > FREE_LEVEL for item in items)
        raise _Obstacle("affine" if bound else "elementwise decay", reason)

    def _named(
        self, state: State, own: list[Part], erases: list[int]
    ) -> tuple[Kind, Axis | None, int]:
        axes = self._axes(state)
        decayed = sorted({axes.index(v) for p in own for f in p.narrow for v in variables(f)})
        rank, low = len(erases), " plus low rank" if erases else ""
        if len(set(erases)) > 1:
            raise _Obstacle("affine", f"the update reads {state.name} along both axes")
        if decayed and erases and decayed[0] != erases[0]:
            reason = f"the decay of {state.name} and its correction act along different axes"
            raise _Obstacle("affine", reason)
        acts = decayed or [n for n in erases[:1] if AXES[n - len(axes)] == "value"]
        axis = AXES[acts[0] - len(axes)] if acts else None
        if decayed:
            return ("diagonal plus low rank" if erases else "diagonal decay"), axis, rank
        scaled = not own or bool(own[0].narrow) or own[0].negative
        kinds: dict[tuple[bool, bool], Kind] = {
            (False, False): "identity",
            (True, False): "scalar decay",
            (False, True): "identity plus low rank",
            (True, True): "scalar decay plus low rank",
        }
        return kinds[scaled, bool(low)], axis, rank

    def _axes(self, state: State) -> list[Var]:
        return [v for index in self._update(state).index for _, v in index.terms]

    def _erase_axes(self, part: Part, state: State) -> list[int]:
        """The axes that one write reads the state along; raises _Obstacle for other uses."""
        axes = self._axes(state)
        if part.base is not None or part.wide:
            self._check_wide(part, state)
        bound = [f for f in part.narrow if self.dependences.scalar(f).level > FREE_LEVEL]
        if not bound:
            return []
        if len(axes) < 2:
            return [0] * self._vector_rank(bound[0], state)
        factor = bound[0]
        found = self.dependences.scalar(factor)
        if found.form != "read":
            raise self._affine(state, found)
        own = variables(factor)
        across = own and found.axis is not None and axes.index(own[0]) == 1 - found.axis
        if not across or found.axis is None:
            raise _Obstacle("affine", f"a read of {state.name} is written to its other axis")
        return [found.axis]

    def _check_wide(self, part: Part, state: State) -> None:
        for factor in (*part.wide, *([part.base] if part.base else [])):
            found = self.dependences.scalar(factor)
            if found.level == AFFINE_LEVEL:
                raise self._affine(state, found)
        if len(self._axes(state)) > 1:
            reason = f"adds a matrix to {state.name} that is no outer product of vectors"
            raise _Obstacle("affine", reason)

    @staticmethod
    def _uses(state: State) -> str:
        return f"uses the state {state.name} element by element"

    def _vector_rank(self, expression: Scalar, state: State) -> int:
        """How many dot products with a vector state an expression adds, each times a vector."""
        found = self.dependences.scalar(expression)
        if found.level == FREE_LEVEL:
            return 0
        match expression:
            case Apply("add" | "sub" | "neg", args):
                return sum(self._vector_rank(argument, state) for argument in args)
            case Apply("mul", args):
                bound = [a for a in args if self.dependences.scalar(a).level > FREE_LEVEL]
                return self._vector_rank(bound[0], state)
            case Load(array, index) if found.form == "read" and not index:
                return 1
            case Load(array) if array in self.definitions and found.form != "state":
                return self._vector_rank(self.definitions[array].body, state)
        raise self._affine(state, found)
