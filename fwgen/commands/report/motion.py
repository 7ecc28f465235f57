"""How one token moves a state, read off its update lines: decays, erases and writes.

Each version of a state that the update makes is a `Link` to the version before it:

    W_1[i, j] = d * W[i, j] + sum_g s_g (sum_l W[i, l] a_g[l]) c_g[j] + sum_h s_h u_h[i] c_h[j]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fwgen.ir.nodes import Apply, Const, IndexValue, Load, Scalar, State, Statement, Step, Var
from fwgen.ir.walk import loads, reads, scalars, substitute, variables
from fwgen.schedule.graph import dependents

MOST_TERMS = 32
Factors = tuple[Scalar, ...]
Product = tuple[bool, Factors]
"""A sign (whether negative) and factors."""


@dataclass(frozen=True, slots=True)
class Erase:
    """A write that reads the state: `scale * (W query) write^T`; `value`: along the value axis."""

    negative: bool
    scale: Factors
    query: Factors
    write: Factors
    value: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """What is added whatever the state holds: factors without, along each and along both axes."""

    negative: bool
    scale: Factors
    sides: tuple[Factors, ...]
    wide: Factors


@dataclass(frozen=True, slots=True)
class Link:
    """The step from one version of a state to the next.

    `scale`, `sides` (one per axis of `axes`) and `wide` are the factors of the decay.
    """

    before: str
    after: str
    axes: tuple[Var, ...]
    negative: bool
    scale: Factors
    sides: tuple[Factors, ...]
    wide: Factors
    erases: tuple[Erase, ...]
    writes: tuple[Write, ...]


class _Unclear(Exception):  # noqa: N818 - control flow inside this file
    """The update is not of the form above."""


def motion(step: Step, state: State) -> tuple[Link, ...] | None:
    """The links of a state's update from its old to its new value; None where one is unclear.

    `step` is as lowered, so the links are those of the rule's lines.
    """
    reader = _Reader(step, state)
    links: list[Link] = []
    try:
        while not links or links[-1].before != state.old:
            links.append(reader.link(links[-1].before if links else state.new))
    except _Unclear:
        return None
    return tuple(reversed(links))


def overwritten(step: Step, state: State) -> bool:
    """Whether nothing of a state's old value is left in its new one."""
    return state.new not in dependents(step.statements, {state.old})


class _Reader:
    def __init__(self, step: Step, state: State) -> None:
        self.dims = {array.name: array.dims for array in step.arrays}
        self.old = state.old
        count: dict[str, list[Statement]] = {}
        for statement in step.statements:
            count.setdefault(statement.target, []).append(statement)
        self.definitions: Mapping[str, Statement] = {
            name: found[0]
            for name, found in count.items()
            if len(found) == 1 and all(i.variable is not None for i in found[0].index)
        }
        # What comes through another state is that state's business: it counts as given here.
        others = {s.name for s in step.states} - {state.name}
        foreign = {a.name for a in step.arrays if a.of in others}
        foreign |= {s.new for s in step.states if s.name in others}
        self.bound = {state.old}
        for statement in step.statements:
            if self.bound.intersection(reads(statement)) and statement.target not in foreign:
                self.bound.add(statement.target)

    def link(self, after: str) -> Link:
        """The link that makes the version `after`."""
        statement = self.definitions.get(after)
        if statement is None or statement.over or not self.bound.intersection(reads(statement)):
            raise _Unclear
        axes = statement.free
        if len(axes) > 2:
            raise _Unclear
        decays: list[tuple[str, Product]] = []
        rest: list[Product] = []
        for negative, factors in self.expand(statement.body):
            own = [f for f in factors if self._version(f, axes)]
            others = tuple(f for f in factors if f not in own)
            if not own:
                rest.append((negative, factors))
                continue
            if len(own) > 1 or decays or any(self._is_bound(f) for f in others):
                raise _Unclear
            assert isinstance(own[0], Load)
            decays.append((own[0].array, (negative, others)))
        if not decays:
            raise _Unclear
        before, (negative, factors) = decays[0]
        _check_plain((*factors, *(f for _, inner in rest for f in inner)), axes)
        scale, sides, wide = _split(factors, axes)
        bound = [any(self._is_bound(f) for f in factors) for _, factors in rest]
        erases = [self._erase(t, axes, before) for t, b in zip(rest, bound, strict=True) if b]
        writes = [_write(t, axes) for t, b in zip(rest, bound, strict=True) if not b]
        made = (tuple(erases), tuple(writes))
        return Link(before, after, axes, negative, scale, sides, wide, *made)

    def _is_bound(self, expression: Scalar) -> bool:
        return any(load.array in self.bound for load in loads(expression))

    def _version(self, factor: Scalar, axes: tuple[Var, ...]) -> bool:
        """Whether a factor is the element of a version of the state that the link is about."""
        if not isinstance(factor, Load) or factor.array not in self.bound:
            return False
        plain = tuple(index.variable for index in factor.index) == axes
        return plain and self.dims[factor.array] == self.dims[self.old]

    def expand(self, expression: Scalar) -> list[Product]:
        """A sum of signed products; only what depends on the state is multiplied out."""
        if not self._is_bound(expression):
            return [_flat(expression)]
        match expression:
            case Apply("add", args):
                return [term for argument in args for term in self.expand(argument)]
            case Apply("sub", (left, right)):
                return [*self.expand(left), *((not n, f) for n, f in self.expand(right))]
            case Apply("neg", (inner,)):
                return [(not n, f) for n, f in self.expand(inner)]
            case Apply("mul", args):
                return self._multiplied(args)
            case Apply("div", (left, right)) if not self._is_bound(right):
                under = Apply("div", (Const(1.0), right))
                return [(n, (*f, under)) for n, f in self.expand(left)]
            case Load():
                return self._looked_through(expression)
        raise _Unclear

    def _multiplied(self, args: tuple[Scalar, ...]) -> list[Product]:
        result: list[Product] = [(False, ())]
        for argument in args:
            parts = self.expand(argument)
            if len(result) * len(parts) > MOST_TERMS:
                raise _Unclear
            result = [(m != n, (*f, *g)) for m, f in result for n, g in parts]
        return result

    def _looked_through(self, load: Load) -> list[Product]:
        """A narrow value stands for its definition; a read and a version of the state stay."""
        definition = self.definitions.get(load.array)
        if load.array == self.old or len(self.dims[load.array]) > 1:
            return [(False, (load,))]
        if definition is None or definition.reduce not in (None, "sum"):
            raise _Unclear
        if definition.reduce == "sum":
            return [(False, (load,))]
        places = dict(zip(definition.free, load.index, strict=True))
        return self.expand(substitute(definition.body, places))

    def _erase(self, term: Product, axes: tuple[Var, ...], before: str) -> Erase:
        negative, factors = term
        bound = [f for f in factors if self._is_bound(f)]
        if len(bound) != 1 or len(axes) != 2 or not isinstance(bound[0], Load):
            raise _Unclear
        read = bound[0]
        definition = self.definitions.get(read.array)
        kept = [index.variable for index in read.index]
        if definition is None or definition.reduce != "sum" or len(kept) != 1:
            raise _Unclear
        sign, inner = _flat(definition.body)
        own = [f for f in inner if isinstance(f, Load) and f.array == before]
        others = [f for f in inner if f not in own]
        if len(own) != 1 or len(definition.over) != 1 or any(map(self._is_bound, others)):
            raise _Unclear
        places = [index.variable for index in own[0].index]
        summed = definition.over[0]
        if set(places) != {summed, definition.free[0]}:
            raise _Unclear
        _check_plain(tuple(others), (summed,))
        axis = places.index(summed)
        scale = tuple(f for f in others if not variables(f))
        query = tuple(f for f in others if variables(f) == [summed])
        outside, sides, wide = _split(tuple(f for f in factors if f is not read), axes)
        across = kept[0] == axes[1 - axis] and not sides[1 - axis] and not wide
        if not across or len(scale) + len(query) != len(others):
            raise _Unclear
        return Erase(negative != sign, (*scale, *outside), query, sides[axis], axis == 0)


def _flat(expression: Scalar) -> Product:
    """Sign and factors of a product."""
    match expression:
        case Apply("mul", args):
            parts = [_flat(argument) for argument in args]
            factors = tuple(factor for _, inner in parts for factor in inner)
            return sum(negative for negative, _ in parts) % 2 == 1, factors
        case Apply("neg", (inner,)):
            negative, factors = _flat(inner)
            return not negative, factors
        case Const(value) if value < 0:
            return True, () if value == -1 else (Const(-value),)
        case Const(1):
            return False, ()
        case _:
            return False, (expression,)


def _split(factors: Factors, axes: tuple[Var, ...]) -> tuple[Factors, tuple[Factors, ...], Factors]:
    """Factors without a variable, along each axis, and along several."""
    scale = tuple(f for f in factors if not variables(f))
    sides = tuple(tuple(f for f in factors if variables(f) == [axis]) for axis in axes)
    return scale, sides, tuple(f for f in factors if len(variables(f)) > 1)


def _check_plain(factors: Factors, axes: tuple[Var, ...]) -> None:
    """Whether the factors read as vectors and matrices: their indices are variables in order."""
    for load in (node for f in factors for node in scalars(f)):
        if isinstance(load, IndexValue):
            raise _Unclear
        if not isinstance(load, Load):
            continue
        places = [index.variable for index in load.index if index.terms]
        if None in places or places != [v for v in axes if v in places]:
            raise _Unclear


def _write(term: Product, axes: tuple[Var, ...]) -> Write:
    return Write(term[0], *_split(term[1], axes))
