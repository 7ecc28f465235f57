"""Straight-line code of one token: every statement of Step IR becomes a tensor expression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fwgen.emit.triton.lanes import Kind, Place, Space, inside, row_major
from fwgen.emit.triton.module import Line, Module, Stage
from fwgen.emit.triton.names import Names
from fwgen.emit.triton.places import place_of, solve
from fwgen.emit.triton.scalars import Printer
from fwgen.emit.triton.statement import Evaluation
from fwgen.emit.triton.text import ADD, AND, COMPARE, Text, binary, joined, number, size, where
from fwgen.errors import InternalError
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Index, Load, Reduction, Statement, Var
from fwgen.ir.walk import loads, scalars

PULL_LIMIT = 48
"""An access that moves elements is evaluated again where that costs at most so many operations."""


class TokenWriter:
    """Writes statements in order; `lines` is the code so far.

    Invariant: every tensor is zero in its padded lanes.
    """

    def __init__(self, module: Module, stage: Stage) -> None:
        self.module = module
        self.stage = stage
        self.names = Names(module.fresh.taken)
        self.lines: list[Line] = []
        self.definitions: dict[str, dict[Statement, None]] = {}
        self.assigned: set[str] = set()
        self.moved: dict[str, tuple[str, set[str]]] = {}
        self.staged: set[str] = set()
        self.loaded: set[str] = set()

    def write(self, statements: Sequence[Statement]) -> None:
        """Append the code of statements; matrix params are read again for every call."""
        self.loaded.clear()
        for statement in statements:
            self._write(statement)

    def require(self, array: str) -> str:
        """The name of an array's tensor; an adjoint that nothing contributed to becomes zero."""
        role = self.module.arrays[array].role
        name = self.module.names[array]
        if role == "local" and array not in self.assigned:
            shape = self.module.shape(array)
            self.lines.append(Line(name, f"{name} = tl.full({shape}, 0.0, tl.float32)"))
            self.assigned.add(array)
        if self.module.is_late(array) and array not in self.loaded:
            at, mask = self.module.grid(array)
            address = f"{self.module.pointers[array]} + {at}, mask={mask}, other=0.0"
            self.lines.append(Line(name, f"{name} = tl.load({address}).to(tl.float32)"))
            self.loaded.add(array)
        return name

    def kind(self, statement: Statement, var: Var) -> Kind:
        """What part of its dim a variable of a statement runs over at once."""
        tiling = self.module.tiling
        return "tile" if tiling and tiling.runs(statement, var) else "whole"

    def gathered(self, part: Text, shape: str, reduce: Reduction) -> Text:
        """Whole arrays are reduced at once."""
        raise InternalError("no loop runs over whole arrays")

    # ---- one statement

    def _write(self, statement: Statement) -> None:
        self.definitions.setdefault(statement.target, {})[statement] = None
        self._assign(statement, Evaluation(self, statement).value())

    def _assign(self, statement: Statement, value: Text | None) -> None:
        array = self.module.arrays[statement.target]
        name = self.module.names[array.name]
        first = array.name not in self.assigned and array.role != "seed"
        if value is None:
            if first:
                self.require(array.name)
            return
        if first:
            text = f"{name} = {value}"
        elif statement.accumulate:
            text = f"{name} += {value}"
            self.staged.discard(array.name)
            self.moved = {k: v for k, v in self.moved.items() if array.name not in v[1]}
        else:
            text = f"{name} = {binary('+', ADD, Text(name), value)}"
        self.assigned.add(array.name)
        self.lines.append(Line(name, text))

    # ---- accesses that move elements

    def fetch(self, array: str, places: Sequence[Place], space: Space) -> Text:
        """Elements at computed places; zero where a place lies outside the array."""
        info = self.module.arrays[array]
        if self.module.pointers.get(array) is not None:
            return self._load(array, self.module.pointers[array], Dim(), places, space)
        if self._cost(array) <= PULL_LIMIT:
            return self._pull(array, places, space)
        if array not in self.staged:
            self._store(array)
        return self._load(array, self.stage.pointer, self.stage.place(info), places, space)

    def _load(
        self, array: str, pointer: str, offset: Dim, places: Sequence[Place], space: Space
    ) -> Text:
        info = self.module.arrays[array]
        conditions: list[Text] = []
        for place, dim in zip(places, info.dims, strict=True):
            limits = inside(place, dim)
            if limits is None:
                return number(0.0)
            conditions += limits
        at = row_major([p.text for p in places], info.dims)
        parts = [Text(pointer)] + ([size(offset)] if offset.terms else []) + [at]
        address = joined("+", ADD, [p for p in parts if str(p) != "0"])
        mask = joined("&", AND, conditions) if conditions else Text("")
        if len(conditions) > 1 and any(place.dim is not None for place in places):
            mask = binary("!=", COMPARE, mask, Text("0"))  # scalars and lanes meet in a mask
        limits_text = f", mask={mask}, other=0" if conditions else ""
        cast = ".to(tl.float32)" if info.floating and self.stage.pointer != pointer else ""
        return self._moved(array, f"tl.load({address}{limits_text}){cast}", {array})

    def _moved(self, array: str, text: str, sources: set[str]) -> Text:
        """A temporary that holds an expression, shared by equal ones."""
        if text not in self.moved:
            name = self.names.numbered(f"{self.module.names[array]}_moved")
            self.lines.append(Line(name, f"{name} = {text}"))
            self.moved[text] = (name, sources)
        return Text(self.moved[text][0])

    def _store(self, array: str) -> None:
        at, mask = self.module.grid(array)
        offset = self.stage.place(self.module.arrays[array])
        parts = [Text(self.stage.pointer)] + ([size(offset)] if offset.terms else [])
        address = joined("+", ADD, [*parts, Text(at)])
        text = f"tl.store({address}, {self.require(array)}, mask={mask})"
        self.lines += [Line(None, x) for x in ("tl.debug_barrier()", text, "tl.debug_barrier()")]
        self.staged.add(array)

    def _cost(self, array: str, limit: float = PULL_LIMIT) -> float:
        """Operations to evaluate an element of an array afresh; infinite behind a reduction.

        Counting ends beyond the limit: what reads itself twice over costs twice as much each time.
        """
        info = self.module.arrays[array]
        if self.module.pointers.get(array) is not None:
            return 1
        if not info.dims:
            return 0
        known = self.definitions.get(array, {})
        if not known or info.role != "local" or any(s.over for s in known):
            return math.inf
        total = 0.0
        for statement in known:
            total += sum(1 for _ in scalars(statement.body))
            for load in loads(statement.body):
                if total > limit:
                    return total
                total += self._cost(load.array, limit - total)
        return total

    def _pull(self, array: str, places: Sequence[Place], space: Space) -> Text:
        info = self.module.arrays[array]
        total: Text | None = None
        for statement in self.definitions[array]:
            environment: dict[Var, Place] = {}
            conditions: list[Text] = []
            reached = True
            for index, dim, place in zip(statement.index, info.dims, places, strict=True):
                solution = solve(index, dim, place)
                if solution is None:
                    reached = False
                    break
                environment |= solution[0]
                conditions += solution[1]
            if not reached:
                continue
            value = self.printer(environment, space).real(statement.body)
            rest = total or number(0.0)
            if statement.accumulate and total is not None:
                part = (
                    where(joined("&", AND, conditions), value, number(0.0)) if conditions else value
                )
                total = binary("+", ADD, total, part)
            else:
                total = where(joined("&", AND, conditions), value, rest) if conditions else value
        return total or number(0.0)

    def printer(self, environment: Mapping[Var, Place], space: Space) -> Printer:
        """A printer of scalar expressions whose variables stand for the given places."""

        def place(index: Index) -> Place:
            found = place_of(index, environment)
            if "wrap(" in str(found.text):
                self.module.used.add("wrap")
            return found

        def element(load: Load) -> Text:
            places = [place(index) for index in load.index]
            lanes = self.plain(load, places)
            if lanes is not None:
                return self.element(load, lanes, space)
            return self.fetch(load.array, places, space)

        module = self.module
        return Printer(element, place, module.integers, module.flags, module.used)

    def element(self, load: Load, lanes: tuple[Var, ...], space: Space) -> Text:
        """An access that reads a tensor as it lies in registers."""
        return space.expand(self.require(load.array), lanes)

    def plain(self, load: Load, places: Sequence[Place]) -> tuple[Var, ...] | None:
        """The lanes of an access that reads a tensor as it lies in registers, else None."""
        dims = self.module.arrays[load.array].dims
        lanes = tuple(p.var for p, d in zip(places, dims, strict=True) if p.var and p.var.dim == d)
        found = len(lanes) == len(dims) == len(set(lanes))
        return lanes if found else None
