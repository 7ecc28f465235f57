"""The statements of a token as passes over blocks of an axis, for arrays larger than registers.

A *wide* array has two or more long axes, or one whose size is a product of named dims; it lies in
memory. Statements over wide spaces are gathered into passes: a pass walks one axis block by block
and runs all its statements on a block before the next one comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Array, Load, Statement, Var
from fwgen.ir.walk import loads, reads

_SHORT = 16
"""An axis of a constant size below this one counts for nothing."""

Fixed = Callable[[Statement, Var], bool]
"""Whether a variable of a statement runs over the part of one program anyway."""


def weight(dim: Dim) -> int:
    """How many named dims a size is a product of; a long constant size counts as one."""
    if dim.names:
        return max(len(names) for names, _ in dim.terms)
    return int((dim.constant or 0) >= _SHORT)


def is_wide(array: Array, split: int | None = None) -> bool:
    """Whether an array lies in memory rather than in registers; programs share its axis `split`."""
    long = [weight(dim) for dim in array.dims]
    return sum(long) >= 2 and any(w for axis, w in enumerate(long) if axis != split)


def target_axes(statement: Statement, dims: Sequence[Dim]) -> list[Var]:
    """A variable for every axis of the target: the statement's own, or a new one for a part."""
    axes = []
    for number, (index, dim) in enumerate(zip(statement.index, dims, strict=True)):
        var = index.variable
        plain = var is not None and var.dim == dim
        axes.append(var if var and plain else Var(f"{statement.target}[{number}]", dim))
    return axes


@dataclass
class Pass:
    """Statements that run together: on whole arrays, or block by block along an axis of size `dim`.

    `loops` has the variable of each statement that the loop moves. `blocks`: the axis that the loop
    moves along of each array that is written, None for what the loop sums up.
    """

    dim: Dim | None
    statements: list[Statement] = field(default_factory=list)
    loops: list[Var | None] = field(default_factory=list)
    blocks: dict[str, int | None] = field(default_factory=dict)

    def add(
        self, statement: Statement, var: Var | None, axes: Sequence[Var], first: bool = False
    ) -> None:
        """Add a statement whose variable `var` the loop moves, at the end or before all others."""
        place = 0 if first else len(self.statements)
        self.statements.insert(place, statement)
        self.loops.insert(place, var)
        self.blocks[statement.target] = axes.index(var) if var in axes else None

    def drop(self, statement: Statement) -> None:
        """Take out the only statement that writes its target."""
        place = self.statements.index(statement)
        del self.statements[place], self.loops[place], self.blocks[statement.target]


class _Planner:
    def __init__(self, arrays: Mapping[str, Array], wide: Collection[str], fixed: Fixed) -> None:
        self.arrays, self.wide, self.fixed = arrays, wide, fixed
        self.passes: list[Pass] = []
        self.names: dict[int, set[str]] = {}
        """The arrays that a statement mentions, by its identity."""

    def axes(self, statement: Statement) -> list[Var]:
        return target_axes(statement, self.arrays[statement.target].dims)

    def loops(self, statement: Statement) -> list[Var]:
        """The variables that a loop may move, best first: long axes, then outer ones.

        A loop cannot sum up a wide array, which would have to be in registers.
        """
        space = [*self.axes(statement), *(() if statement.target in self.wide else statement.over)]
        free = [v for v in space if weight(v.dim) and not self.fixed(statement, v)]
        places: list[tuple[Var | None, ...]] = []
        if statement.target in self.wide:
            places.append(tuple(self.axes(statement)))
        for load in loads(statement.body):
            if load.array in self.wide:
                places.append(tuple(index.variable for index in load.index))
        outer = {v: min((p.index(v) for p in places if v in p), default=9) for v in free}
        return sorted(free, key=lambda v: (-weight(v.dim), outer[v]))

    def is_large(self, statement: Statement) -> bool:
        """Whether all elements that the statement visits are too many for registers."""
        space = [*self.axes(statement), *statement.over]
        return sum(weight(v.dim) for v in space) >= 2 and bool(self.loops(statement))

    def add(self, statement: Statement) -> None:
        sources = self.names[id(statement)] = {*reads(statement), statement.target}
        after = len(self.passes) - 1
        while after >= 0 and sources.isdisjoint(self.passes[after].blocks):
            after -= 1
        place = self._wide_place if self.is_large(statement) else self._narrow_place
        home, var = place(statement, after)
        home.add(statement, var, self.axes(statement))

    def _wide_place(self, statement: Statement, after: int) -> tuple[Pass, Var]:
        loops = self.loops(statement)
        for home in self.passes[max(after, 0) :]:
            for var in loops:
                if self._joins(statement, var, home):
                    return home, var
        self.passes.append(Pass(loops[0].dim))
        return self.passes[-1], loops[0]

    def _narrow_place(self, statement: Statement, after: int) -> tuple[Pass, Var | None]:
        if after >= 0 and self.passes[after].dim is not None:
            for var in self.loops(statement):
                if self._joins(statement, var, self.passes[after]):
                    return self.passes[after], var
            after += 1
        after = max(after, 0)
        if after == len(self.passes) or self.passes[after].dim is not None:
            self.passes.insert(after, Pass(None))
        return self.passes[after], None

    def _joins(self, statement: Statement, var: Var, home: Pass) -> bool:
        """Whether the statement can run on a block as soon as the pass has its part of it."""
        if home.dim != var.dim:
            return False
        axes = self.axes(statement)
        own = axes.index(var) if var in axes else None
        if statement.target in home.blocks and home.blocks[statement.target] != own:
            return False
        inner = [load for load in loads(statement.body) if load.array in home.blocks]
        return all(self._in_block(statement, x, home.blocks[x.array], var) for x in inner)

    def sink(self) -> None:
        """Move what a pass only leaves for a later one to that one, so that it takes no memory."""
        for number, home in enumerate(self.passes):
            mentions = Counter(name for s in home.statements for name in self.names[id(s)])
            for statement, var in list(zip(home.statements, home.loops, strict=True)):
                later = None if var is None else self._user(statement.target, number)
                if var is None or later is None or mentions[statement.target] > 1:
                    continue
                axis = home.blocks[statement.target]
                if self._joins(statement, var, later) and self._read_in_block(
                    statement.target, axis, later
                ):
                    home.drop(statement)
                    mentions.subtract(self.names[id(statement)])
                    later.add(statement, var, self.axes(statement), first=True)

    def _read_in_block(self, array: str, axis: int | None, home: Pass) -> bool:
        """Whether all reads of an array in a pass are of the block at hand."""
        pairs = zip(home.statements, home.loops, strict=True)
        return all(
            var is not None and self._in_block(s, load, axis, var)
            for s, var in pairs
            for load in loads(s.body)
            if load.array == array
        )

    def _user(self, array: str, number: int) -> Pass | None:
        """The first pass after that number which mentions an array."""
        for later in self.passes[number + 1 :]:
            if any(array in self.names[id(s)] for s in later.statements):
                return later
        return None

    def _in_block(self, statement: Statement, load: Load, axis: int | None, var: Var) -> bool:
        """Whether an access reads what the same turn of the loop wrote.

        A variable that is no axis of the target stands for a computed place.
        """
        dims = self.arrays[load.array].dims
        own = [index.variable for index in load.index]
        space = {*self.axes(statement), *statement.over}
        plain = all(v in space and v.dim == d for v, d in zip(own, dims, strict=True) if v)
        plain = plain and None not in own
        return axis is not None and plain and len(set(own)) == len(own) and own[axis] == var


def passes(
    statements: Sequence[Statement],
    arrays: Mapping[str, Array],
    wide: Collection[str],
    fixed: Fixed,
) -> tuple[Pass, ...]:
    """Passes in an order in which every array is complete before a later pass reads it.

    A statement joins the first pass that has all it waits for. `wide` arrays lie in memory.
    """
    planner = _Planner(arrays, wide, fixed)
    for statement in statements:
        planner.add(statement)
    planner.sink()
    return tuple(p for p in planner.passes if p.statements)
