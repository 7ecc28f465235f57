"""Code of a token whose wide arrays lie in memory: passes over blocks of an axis."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fwgen.emit.triton.lanes import Kind, Lane, Place, Space
from fwgen.emit.triton.module import Line, Module, Stage, shape_of
from fwgen.emit.triton.statement import JOINS
from fwgen.emit.triton.text import ADD, Text, binary, joined, number, size
from fwgen.emit.triton.token import PULL_LIMIT, TokenWriter
from fwgen.errors import InternalError
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Load, Reduction, Statement, Var
from fwgen.ir.walk import reads
from fwgen.schedule.passes import Pass, passes

BARRIER = Line(None, "tl.debug_barrier()")
_FILLS: dict[Reduction, float] = {"sum": 0.0, "max": -math.inf, "min": math.inf}

Block = tuple[str, tuple[Lane, ...]]
"""An array and the lanes over which a part of it is held."""


@dataclass
class _Loop:
    """What is known while the body of one pass is written."""

    plan: Pass
    before: list[Line] = field(default_factory=list)
    starts: list[Line] = field(default_factory=list)
    after: list[Line] = field(default_factory=list)
    held: dict[Block, str] = field(default_factory=dict)
    fetched: set[str] = field(default_factory=set)
    written: dict[str, Block] = field(default_factory=dict)
    moving: Var | None = None


class BlockWriter(TokenWriter):
    """Writes statements in passes; arrays of `wide` lie in memory, all others in registers.

    `addresses` has the pointers of wide arrays that are not scratch; those of `begun` hold values
    to which statements add. Scratch that tiles share the parts of lies in `shared`.
    """

    def __init__(
        self,
        module: Module,
        stage: Stage,
        shared: Stage,
        addresses: Mapping[str, str],
        begun: Collection[str] = (),
    ) -> None:
        super().__init__(module, stage)
        self.shared, self.addresses = shared, addresses
        seeds = (a.name for a in module.arrays.values() if a.role == "seed")
        self.assigned.update(begun, (name for name in seeds if name not in module.wide))
        self.absent: set[str] = set()
        self.block_names: dict[Block, str] = {}
        self.loop: _Loop | None = None

    def write(self, statements: Sequence[Statement], wanted: Collection[str] = ()) -> None:
        """Append the code of statements that are in order; `wanted` arrays are needed after it."""

        def fixed(statement: Statement, var: Var) -> bool:
            return super(BlockWriter, self).kind(statement, var) == "tile"

        self.loaded.clear()
        module = self.module
        plan = passes(statements, module.arrays, module.wide, fixed)
        for own in plan:
            if own.dim is None:
                for statement in own.statements:
                    self._write(statement)
            else:
                others = {n for p in plan if p is not own for s in p.statements for n in _names(s)}
                self._write_loop(own, own.dim, others.union(wanted, self.addresses))

    def require(self, array: str) -> str:
        """The name of a whole array in registers."""
        if array in self.module.wide:
            raise InternalError(f"{array} lies in memory")
        with self._outside():
            if array in self.absent:
                name = self.module.names[array]
                at, mask = self.module.grid(array)
                self.lines.append(Line(name, f"{name} = {self._loaded(array, at, mask)}"))
                self.absent.discard(array)
            return super().require(array)

    @contextmanager
    def _outside(self, after: bool = False) -> Iterator[None]:
        """Lines go before (or after) the loop that is being written, if any."""
        loop, lines = self.loop, self.lines
        if loop is not None:
            self.loop, self.lines = None, loop.after if after else loop.before
        try:
            yield
        finally:
            self.loop, self.lines = loop, lines

    # ---- a pass

    def kind(self, statement: Statement, var: Var) -> Kind:
        """What part of its dim a variable of a statement runs over at once."""
        if self.loop is not None and var == self.loop.moving:
            return "rows"
        return super().kind(statement, var)

    def _write_loop(self, plan: Pass, dim: Dim, others: Collection[str]) -> None:
        lines, self.lines, self.moved = self.lines, [], {}
        self.loop = loop = _Loop(plan)
        for statement, var in zip(plan.statements, plan.loops, strict=True):
            loop.moving = var
            self._write(statement)
        module = self.module
        leaving = [a for a in loop.written if a in others]
        stores = self._stores(leaving)
        turns = module.lanes.definitions(dim)
        body = [*(Line(n, f"{n} = {text}") for n, text in turns), *self.lines, *stores]
        block = module.lanes.get(dim, "rows").block
        lines += [*loop.before, *loop.starts]
        header = Line(None, f"for block in range(0, tl.cdiv({size(dim)}, {block})):")
        self._part(lines)
        lines += [header, *(replace(line, depth=line.depth + 1) for line in body)]
        self._part(lines)
        lines += loop.after
        self.lines, self.loop, self.moved = lines, None, {}
        narrow = {a for a in leaving if a not in module.wide}
        self.absent |= narrow
        self.staged |= narrow

    def _is_scratch(self, array: str) -> bool:
        """Whether nothing outside the token's code knows the array."""
        known = array in self.addresses or array in self.module.pointers
        return array in self.module.wide and not known

    @staticmethod
    def _part(lines: list[Line]) -> None:
        """Parts what one thread writes from what another reads."""
        for line in reversed(lines):
            if line is BARRIER:
                return
            if "tl.load(" in line.text or "tl.store(" in line.text:
                break
        lines.append(BARRIER)

    def _stores(self, arrays: Sequence[str]) -> list[Line]:
        assert self.loop is not None
        found = [BARRIER] if self.loop.fetched.intersection(arrays) else []
        for array in arrays:
            block = self.loop.written[array]
            at, mask = self.module.lanes.grid(block[1])
            text = f"tl.store({self._address(array)} + {at}, {self.loop.held[block]}, mask={mask})"
            found.append(Line(None, text))
        return found

    def gathered(self, part: Text, shape: str, reduce: Reduction) -> Text:
        """What a loop gathers of the parts that its turns reduce."""
        assert self.loop is not None
        name = self.names.numbered("gathered")
        start = f"{name} = tl.full({shape}, {number(_FILLS[reduce])}, tl.float32)"
        self.loop.starts.append(Line(name, start))
        join = f"{name} = {JOINS[reduce]}({name}, {part})" if reduce in JOINS else None
        self.lines.append(Line(name, join or f"{name} += {part}"))
        return Text(name)

    # ---- assignments

    def _assign(self, statement: Statement, value: Text | None) -> None:
        loop, target = self.loop, statement.target
        if loop is not None and loop.plan.blocks[target] is not None:
            self._assign_block(statement, value)
            return
        with self._outside(after=True):
            if target in self.absent:
                self.require(target)
            self.staged.discard(target)
            super()._assign(statement, value)

    def _assign_block(self, statement: Statement, value: Text | None) -> None:
        assert self.loop is not None
        array = statement.target
        lanes = self.module.axes(array, self.loop.plan.blocks[array])
        block, first = (array, lanes), array not in self.assigned
        name = self._name(block) if first else self._block(block)
        self.loop.held[block], self.loop.written[array] = name, block
        if first and value is None:
            value = Text(f"tl.full({shape_of(lanes)}, 0.0, tl.float32)")
        if value is None:
            return
        if first:
            text = f"{name} = {value}"
        elif statement.accumulate:
            text = f"{name} += {value}"
        else:
            text = f"{name} = {binary('+', ADD, Text(name), value)}"
        self.assigned.add(array)
        self.lines.append(Line(name, text))

    # ---- accesses

    def element(self, load: Load, lanes: tuple[Var, ...], space: Space) -> Text:
        """An access that reads a tensor as it lies in registers or, block by block, in memory."""
        own = tuple(space.lanes[v] for v in lanes)
        if load.array in self.module.wide or any(lane.kind == "rows" for lane in own):
            return space.expand(self._block((load.array, own)), lanes)
        return super().element(load, lanes, space)

    def _block(self, block: Block) -> str:
        """The name of a block, which is loaded on first use in a pass."""
        array, lanes = block
        held = self.loop.held if self.loop is not None else {}
        if block not in held:
            held[block] = name = self._name(block)
            self._to_memory(array)
            if self._is_scratch(array) and array not in self.assigned:
                text = f"tl.full({shape_of(lanes)}, 0.0, tl.float32)"
            else:
                text = self._loaded(array, *self.module.lanes.grid(lanes))
            self.lines.append(Line(name, f"{name} = {text}"))
            if self.loop is not None:
                self.loop.fetched.add(array)
        return held[block]

    def _name(self, block: Block) -> str:
        if block not in self.block_names:
            wanted = f"{self.module.names[block[0]]}_rows"
            self.block_names[block] = self.names.numbered(wanted)
        return self.block_names[block]

    def shapes(self) -> dict[str, tuple[str, ...]]:
        """The block lengths of every block, by its name."""
        return {
            name: tuple(sorted(lane.block for lane in lanes))
            for (_, lanes), name in self.block_names.items()
        }

    def _to_memory(self, array: str) -> None:
        """Store an array of the registers, so that parts of it can be loaded."""
        known = array in self.module.wide or array in self.module.pointers
        if not known and array not in self.staged:
            with self._outside():
                self._store(array)

    def _store(self, array: str) -> None:
        """Store a whole array into scratch; stores in a row share their barriers."""
        name = self.require(array)
        at, mask = self.module.grid(array)
        line = Line(None, f"tl.store({self._address(array)} + {at}, {name}, mask={mask})")
        last = self.lines[-2:]
        if len(last) == 2 and last[1] is BARRIER and last[0].text.startswith("tl.store("):
            self.lines.insert(-1, line)
        else:
            self._part(self.lines)
            self.lines += [line, BARRIER]
        self.staged.add(array)

    def _scratch(self, array: str) -> tuple[Stage, Dim]:
        split = self.module.tiling is not None and self.module.tiling.axis(array) is not None
        stage = self.shared if split and array in self.module.wide else self.stage
        return stage, stage.place(self.module.arrays[array])

    def _address(self, array: str) -> str:
        pointer = self.module.pointers.get(array) or self.addresses.get(array)
        if pointer is not None:
            return pointer
        stage, offset = self._scratch(array)
        parts = [Text(stage.pointer)] + ([size(offset)] if offset.terms else [])
        return str(joined("+", ADD, parts))

    def _loaded(self, array: str, at: str, mask: str) -> str:
        cast = ".to(tl.float32)" if self.module.arrays[array].floating else ""
        return f"tl.load({self._address(array)} + {at}, mask={mask}, other=0.0){cast}"

    def fetch(self, array: str, places: Sequence[Place], space: Space) -> Text:
        """Elements at computed places; zero where a place lies outside the array."""
        if array not in self.module.pointers and array not in self.module.wide:
            if array not in self.staged and self._cost(array) <= PULL_LIMIT:
                return self._pull(array, places, space)
            self._to_memory(array)
        return self._load(array, self._address(array), Dim(), places, space)

    def _cost(self, array: str, limit: float = PULL_LIMIT) -> float:
        known = array in self.module.wide or array in self.absent
        return 1 if known else super()._cost(array, limit)


def _names(statement: Statement) -> list[str]:
    return [statement.target, *reads(statement)]
