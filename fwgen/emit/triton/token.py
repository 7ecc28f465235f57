"""Straight-line code of one token: every statement of Step IR becomes a tensor expression."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from fwgen.emit.triton.lanes import Lanes, Place, Space, inside, row_major
from fwgen.emit.triton.names import Names
from fwgen.emit.triton.places import place_of, solve
from fwgen.emit.triton.scalars import Printer, vanishing
from fwgen.emit.triton.text import ADD, AND, COMPARE, Text, binary, call, joined, number, product, where
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Array, Index, IndexValue, Load, Scalar, Statement, Var
from fwgen.ir.walk import loads, scalars, variables
from fwgen.schedule.axes import Tiling

_PULL_LIMIT = 48
"""An access that moves elements is evaluated again where that costs at most so many operations."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of code; `target` is the name it assigns, None for one that is always kept."""

    target: str | None
    text: str


@dataclass
class Module:
    """What all kernels of a module share: arrays and their names, lanes, tiling, used helpers.

    `pointers` names, for arrays in memory, the pointer to the array of this head (and token).
    """

    arrays: Mapping[str, Array]
    names: Mapping[str, str]
    pointers: Mapping[str, str]
    lanes: Lanes
    tiling: Tiling | None
    fresh: Names
    integers: frozenset[str] = frozenset()
    used: set[str] = field(default_factory=set)
    work: dict[tuple[str, ...], None] = field(default_factory=dict)

    def space(self, array: str) -> tuple[Space, tuple[Var, ...]]:
        """The lanes of a whole array, and its axes as variables."""
        dims = self.arrays[array].dims
        tiled = self.tiling.axis(array) if self.tiling else None
        space = Space.of(tuple(self.lanes.get(d, n == tiled) for n, d in enumerate(dims)))
        return space, space.order

    def grid(self, array: str) -> tuple[str, str]:
        """Names of the offsets and of the mask of a whole array; "" for scalars."""
        space, order = self.space(array)
        return self.lanes.grid(tuple(space.lanes[v] for v in order))

    def shape(self, array: str) -> str:
        """The shape of an array's tensor: `(TILE_V, BLOCK_K)`."""
        space, order = self.space(array)
        blocks = [space.lanes[v].block for v in order]
        return f"({', '.join(blocks)}{',' if len(blocks) == 1 else ''})"

    def is_late(self, array: str) -> bool:
        """Whether an array is read where it is used: a matrix that is the same for all tokens."""
        info = self.arrays[array]
        return info.role in ("param", "buffer") and len(info.dims) >= 2

    def flags(self) -> frozenset[str]:
        """Inputs that may hold integers."""
        return frozenset(a.name for a in self.arrays.values() if not a.floating)


@dataclass
class Stage:
    """Scratch memory of one program for arrays whose elements move between lanes."""

    pointer: str
    offsets: dict[str, Dim] = field(default_factory=dict)
    total: Dim = field(default_factory=Dim)

    def place(self, array: Array) -> Dim:
        """Where the array lies; reserves the place on first use."""
        if array.name not in self.offsets:
            elements = Dim.of(1)
            for dim in array.dims:
                elements = elements * dim
            self.offsets[array.name] = self.total
            self.total = self.total + elements
        return self.offsets[array.name]


class TokenWriter:
    """Writes statements in order; `lines` is the code so far.

    Invariant: every tensor is zero in its padded lanes.
    """

    def __init__(self, module: Module, stage: Stage) -> None:
        self.module = module
        self.stage = stage
        self.names = Names(module.fresh.taken)
        self.lines: list[Line] = []
        self.definitions: dict[str, list[Statement]] = {}
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

    # ---- one statement

    def _write(self, statement: Statement) -> None:
        self.definitions.setdefault(statement.target, [])
        if statement not in self.definitions[statement.target]:
            self.definitions[statement.target].append(statement)
        work = _Work(self, statement)
        value = work.value()
        self._assign(statement, value)

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
        if self._cost(array) <= _PULL_LIMIT:
            return self._pull(array, places, space)
        offset = self.stage.place(info)
        if array not in self.staged:
            self._store(array, offset)
        return self._load(array, self.stage.pointer, offset, places, space)

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
        parts = [Text(pointer)] + ([product((offset,))] if offset.terms else []) + [at]
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

    def _store(self, array: str, offset: Dim) -> None:
        at, mask = self.module.grid(array)
        parts = [Text(self.stage.pointer)] + ([product((offset,))] if offset.terms else [])
        address = joined("+", ADD, [*parts, Text(at)])
        text = f"tl.store({address}, {self.require(array)}, mask={mask})"
        self.lines += [Line(None, x) for x in ("tl.debug_barrier()", text, "tl.debug_barrier()")]
        self.staged.add(array)

    def _cost(self, array: str) -> float:
        """Operations to evaluate an element of an array afresh; infinite behind a reduction."""
        info = self.module.arrays[array]
        if self.module.pointers.get(array) is not None:
            return 1
        if not info.dims:
            return 0
        known = self.definitions.get(array, [])
        if not known or info.role != "local" or any(s.over for s in known):
            return math.inf
        total = 0.0
        for statement in known:
            total += sum(1 for _ in scalars(statement.body))
            total += sum(self._cost(load.array) for load in loads(statement.body))
            if total > _PULL_LIMIT:
                break
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
                part = where(joined("&", AND, conditions), value, number(0.0)) if conditions else value
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
                return space.expand(self.require(load.array), lanes)
            return self.fetch(load.array, places, space)

        module = self.module
        return Printer(element, place, module.integers, module.flags(), module.used)

    def plain(self, load: Load, places: Sequence[Place]) -> tuple[Var, ...] | None:
        """The lanes of an access that reads a tensor as it lies in registers, else None."""
        dims = self.module.arrays[load.array].dims
        lanes = tuple(p.var for p, d in zip(places, dims, strict=True) if p.var and p.var.dim == d)
        found = len(lanes) == len(dims) == len(set(lanes))
        return lanes if found else None


class _Work:
    """The evaluation of one statement: its space, its places, the masks that it needs."""

    def __init__(self, writer: TokenWriter, statement: Statement) -> None:
        self.writer, self.statement = writer, statement
        module = writer.module
        dims = module.arrays[statement.target].dims
        tiling = module.tiling
        lanes = {}
        self.axes: list[Var] = []
        self.solved: list[tuple[Index, Dim, Var]] = []
        for number_, (index, dim) in enumerate(zip(statement.index, dims, strict=True)):
            var = index.variable
            if var is None or var.dim != dim:
                var = Var(f"{statement.target}[{number_}]", dim)
                self.solved.append((index, dim, var))
            self.axes.append(var)
        for var in (*self.axes, *statement.over):
            lanes[var] = module.lanes.get(var.dim, bool(tiling and tiling.runs(statement, var)))
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
            text = call(f"tl.{statement.reduce}", text, f"axis={space.order.index(var)}")
        return text


def alive(lines: Sequence[Line], wanted: Callable[[], Sequence[str]]) -> list[str]:
    """The lines that the wanted names depend on, and those that are always kept."""
    live = set(wanted())
    kept: list[str] = []
    for line in reversed(lines):
        if line.target is None or line.target in live:
            names = words(line.text.partition("= ")[2] or line.text)
            if line.target is not None and line.text.startswith(f"{line.target} = "):
                live.discard(line.target)
            live |= names
            kept.append(line.text)
    return kept[::-1]


def words(text: str) -> set[str]:
    """The identifiers in a piece of code."""
    return set(re.findall(r"[A-Za-z_]\w*", text))
