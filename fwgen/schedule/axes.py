"""Which axes of a step run in parallel: an axis that no forward statement sums over or moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Array, Backward, Index, Load, Statement, Step, Var
from fwgen.ir.walk import loads, reads
from fwgen.schedule.graph import dependents

Place = tuple[str, int]
"""An axis of an array: the array's name and the number of the axis."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """The places that one parallel axis runs through, all of size `dim`.

    The grid may split them into tiles: every tile computes its part of the arrays that have such a
    place, and all of each array that has none. Sums over the axis, which only the backward takes,
    are partial results of one tile each.
    """

    dim: Dim
    places: frozenset[Place]

    def axis(self, array: str) -> int | None:
        """The tiled axis of an array, None for an array that every tile holds whole."""
        return next((axis for name, axis in self.places if name == array), None)

    def runs(self, statement: Statement, var: Var) -> bool:
        """Whether a variable of a statement runs over one tile only."""
        accesses = [(statement.target, statement.index)]
        accesses += [(load.array, load.index) for load in loads(statement.body)]
        return any(
            index.variable == var and (array, axis) in self.places
            for array, entries in accesses
            for axis, index in enumerate(entries)
        )


class _Classes:
    """Axes that one variable runs along somewhere are the same axis."""

    def __init__(self) -> None:
        self.parent: dict[Place, Place] = {}
        self.moved: set[Place] = set()

    def root(self, place: Place) -> Place:
        self.parent.setdefault(place, place)
        while self.parent[place] != place:
            self.parent[place] = self.parent[self.parent[place]]
            place = self.parent[place]
        return place

    def join(self, a: Place, b: Place) -> None:
        self.parent[self.root(b)] = self.root(a)

    def members(self, place: Place) -> frozenset[Place]:
        root = self.root(place)
        return frozenset(p for p in self.parent if self.root(p) == root)


def tiling(step: Step, backward: Backward | None = None) -> Tiling | None:
    """The axis to split over programs, or None; one that every matrix state has.

    Without a matrix state it is an axis that all states have. Where several qualify it is the first
    axis of the first such state. Depends on structure only.
    """
    arrays = {a.name: a for a in step.arrays + (backward.arrays if backward else ())}
    statements = step.statements + (backward.statements if backward else ())
    classes = _classes(step, backward, arrays, statements)
    states = [arrays[s.old] for s in step.states]
    matrices = [a for a in states if len(a.dims) >= 2] or [a for a in states if a.dims]
    if not matrices:
        return None
    for axis, dim in enumerate(matrices[0].dims):
        places = classes.members((matrices[0].name, axis))
        found = Tiling(dim, places)
        whole = all(arrays[name].dims[a] == dim for name, a in places)
        moved = any(p in places for p in classes.moved)
        everywhere = all(found.axis(m.name) is not None for m in matrices)
        if whole and not moved and everywhere and _independent(found, step, backward):
            return found
    return None


def _classes(
    step: Step,
    backward: Backward | None,
    arrays: dict[str, Array],
    statements: Sequence[Statement],
) -> _Classes:
    classes = _Classes()
    for array in arrays.values():
        for axis in range(len(array.dims)):
            classes.root((array.name, axis))
    for statement in statements:
        _join_statement(classes, arrays, statement)
    pairs = [(s.old, s.new) for s in step.states]
    if backward is not None:
        pairs += [*backward.seeds, *((a, b) for a, b in backward.results if b is not None)]
    for a, b in pairs:
        for axis in range(len(arrays[a].dims)):
            classes.join((a, axis), (b, axis))
    return classes


def _join_statement(classes: _Classes, arrays: dict[str, Array], statement: Statement) -> None:
    places: dict[Var, list[Place]] = {}
    accesses: list[tuple[str, tuple[Index, ...]]] = [(statement.target, statement.index)]
    accesses += [(load.array, load.index) for load in loads(statement.body)]
    moved: list[Var] = []
    for array, entries in accesses:
        for axis, index in enumerate(entries):
            var = index.variable
            if var is not None and var.dim == arrays[array].dims[axis]:
                places.setdefault(var, []).append((array, axis))
                continue
            classes.moved.add((array, axis))
            moved += [v for _, v in index.terms]
    for same in places.values():
        for a, b in pairwise(same):
            classes.join(a, b)
    for var in moved:
        classes.moved.update(places.get(var, ())[:1])


def _independent(found: Tiling, step: Step, backward: Backward | None) -> bool:
    """Whether tiles need nothing of each other, partial sums of adjoints aside."""
    if len({name for name, _ in found.places}) != len(found.places):
        return False
    if any(found.runs(s, var) for s in step.statements for var in s.over):
        return False
    statements = backward.statements if backward else ()
    adjoints = dependents(statements, {seed for _, seed in backward.seeds} if backward else ())
    for statement in step.statements + statements:
        tiled = [v for v in (*statement.free, *statement.over) if found.runs(statement, v)]
        if len(tiled) > 1:
            return False
        linear = statement.reduce == "sum" and bool(adjoints.intersection(reads(statement)))
        if set(tiled) & set(statement.over) and not linear:
            return False
        # An untiled adjoint is a partial sum; only a sum over the tile may turn tiled into untiled.
        if not set(tiled) & set(statement.over) and _loses(found, statement):
            return False
    return True


def _loses(found: Tiling, statement: Statement) -> bool:
    """Whether a statement reads a tiled array at one fixed position."""
    return any(
        found.axis(load.array) is not None
        and not any(
            index.variable is not None and found.runs(statement, index.variable)
            for index in load.index
        )
        for load in loads(statement.body)
        if isinstance(load, Load)
    )
