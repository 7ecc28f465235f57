"""One statement as a tensor expression: its axes, its places, the masks that it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Protocol

from fwgen.emit.triton.lanes import Kind, Place, Space
from fwgen.emit.triton.module import Module, shape_of
from fwgen.emit.triton.places import place_of, solve
from fwgen.emit.triton.scalars import Printer
from fwgen.emit.triton.text import AND, Text, call, joined, number, where
from fwgen.emit.triton.vanishing import vanishing
from fwgen.ir.nodes import IndexValue, Load, Reduction, Scalar, Statement, Var
from fwgen.ir.walk import loads, variables
from fwgen.schedule.passes import target_axes

JOINS: dict[Reduction, str] = {"max": "maximum", "min": "minimum"}
"""The helpers that join two parts of a reduction; `tl.max` and `tl.min` would lose NaN."""


class Writer(Protocol):
    """What an evaluation needs of the code around it."""

    module: Module

    def printer(self, environment: Mapping[Var, Place], space: Space) -> Printer:
        """A printer of scalar expressions whose variables stand for the given places."""
        ...

    def plain(self, load: Load, places: Sequence[Place]) -> tuple[Var, ...] | None:
        """The lanes of an access that reads a tensor as it lies in registers, else None."""
        ...

    def kind(self, statement: Statement, var: Var) -> Kind:
        """What part of its dim a variable of a statement runs over at once."""
        ...

    def gathered(self, part: Text, shape: str, reduce: Reduction) -> Text:
        """What a loop gathers of the parts that its turns reduce."""
        ...


class Evaluation:
    """The evaluation of one statement: its space, its places, the masks that it needs."""

    def __init__(self, writer: Writer, statement: Statement) -> None:
        self.writer, self.statement = writer, statement
        module = writer.module
        dims = module.arrays[statement.target].dims
        self.axes = target_axes(statement, dims)
        pairs = zip(statement.index, self.axes, strict=True)
        self.solved = [(index, var.dim, var) for index, var in pairs if index.variable != var]
        lanes = {
            var: module.lanes.get(var.dim, writer.kind(statement, var))
            for var in (*self.axes, *statement.over)
        }
        self.space = Space(self._order(), lanes)
        module.work[tuple(sorted(lanes[v].block for v in self.space.order))] = None

    def _order(self) -> tuple[Var, ...]:
        """The order of the axes that needs the fewest transpositions."""
        named = (*self.axes, *self.statement.over)
        wanted: list[tuple[Var, ...]] = [tuple(self.axes)]
        for load in loads(self.statement.body):
            found = [index.variable for index in load.index]
            wanted.append(tuple(v for v in found if v is not None and v in named))
        wanted = [w for w in wanted if len(w) > 1]
        if len(named) < 2 or len(named) > 5 or not wanted:
            return named

        def cost(order: tuple[Var, ...]) -> int:
            return sum([v for v in order if v in w] != list(w) for w in wanted)

        return min(permutations(named), key=cost)

    def value(self) -> Text | None:
        """The tensor over the target's axes; None where the statement reaches no element."""
        statement, space = self.statement, self.space
        places = {v: Place(space.index(v), var=v, natural=True) for v in space.order}
        conditions: list[Text] = []
        bounded: set[Var] = set()
        environment = {v: p for v, p in places.items() if v in (*self.axes, *statement.over)}
        kept = tuple(v for v in space.order if v not in statement.over)
        outer = Space(kept, space.lanes)
        for index, dim, var in self.solved:
            at = Place(outer.index(var), var=var, natural=True)
            inner, outer_solution = solve(index, dim, places[var]), solve(index, dim, at)
            if inner is None or outer_solution is None:
                return None
            environment |= inner[0]
            conditions += outer_solution[1]
            bounded |= {var} if outer_solution[1] else set()
            if index.modulo is not None:
                self.writer.module.used.add("wrap")
        writer = self.writer
        body = writer.printer(environment, space)
        whole = statement.target in writer.module.integers
        text = body.whole(statement.body) if whole else body.real(statement.body)
        zero = self._zero(environment)
        text = self._reduced(text, zero)
        loose = [v for v in kept if v not in zero and v not in bounded]
        if loose:
            conditions.append(outer.mask(loose))
        if conditions:
            nothing = Text("0") if whole else number(0.0)
            text = where(joined("&", AND, conditions), text, nothing)
        if list(kept) == self.axes:
            return text
        return Space(tuple(self.axes), space.lanes).expand(str(text), kept)

    def _zero(self, environment: Mapping[Var, Place]) -> set[object]:
        """The variables in whose padding the body is zero."""

        def zero(load: Load) -> frozenset[object]:
            places = [place_of(index, environment) for index in load.index]
            return frozenset(self.writer.plain(load, places) or ())

        def axes(leaf: Scalar) -> frozenset[object]:
            found: set[object] = set()
            if isinstance(leaf, Load | IndexValue):
                for var in variables(leaf):
                    own = environment[var].var
                    found |= {own} if own is not None else set(self.space.order)
            return frozenset(found)

        found = vanishing(self.statement.body, zero, axes)
        return set() if found is None else set(found)

    def _reduced(self, text: Text, zero: set[object]) -> Text:
        statement, space = self.statement, self.space
        over = [v for v in space.order if v in statement.over]
        if not over:
            return text
        fill = {"sum": 0.0, "max": -math.inf, "min": math.inf}[statement.reduce or "sum"]
        loose = over if statement.reduce != "sum" else [v for v in over if v not in zero]
        if loose:
            text = where(space.mask(loose), text, number(fill))
        for var in reversed(over):
            axis = f"axis={space.order.index(var)}"
            if statement.reduce in JOINS:
                join = JOINS[statement.reduce]
                self.writer.module.used.add(join)
                text = call("tl.reduce", text, axis, f"combine_fn={join}")
            else:
                text = call("tl.sum", text, axis)
        if any(space.lanes[var].kind == "rows" for var in over):
            kept = [space.lanes[v] for v in space.order if v not in over]
            text = self.writer.gathered(text, shape_of(kept), statement.reduce or "sum")
        return text
