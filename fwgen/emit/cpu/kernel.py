"""A kernel for the template: tensors, buffers, and the phases of each sweep with their texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fwgen.emit.cpu.names import Names
from fwgen.emit.cpu.nest import NestView, Part, nest_view
from fwgen.emit.cpu.statements import View, view
from fwgen.emit.cpu.storage import Place, Storage
from fwgen.ir.nodes import Array, Position, Statement
from fwgen.ir.walk import reads, scalars
from fwgen.schedule.plan import Batch, Carry, Item, Kernel, Nest, Scan, Sweep


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of the work space: `count` times `extent` reals.

    `whole`: a row for every token of the sequence; `alias` then points to the chunk's first.
    """

    name: str
    count: str
    extent: str
    comment: str
    whole: bool = False
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Transfer:
    """An array exchanged with a tensor: C++ pointer, tensor slot, and its shape there.

    `axis`: the laned axis of a matrix, -1 for rows, -2 for a scalar.
    """

    base: str
    tensor: int
    extent: str
    outer: str
    last: str
    scalar: bool
    axis: int
    shift: int = 0


@dataclass(frozen=True, slots=True)
class CarryView:
    """A carry for the template. `start`, `finish`: tensor slots, -1 for none."""

    transfer: Transfer
    matrix: bool
    history: bool
    start: int
    finish: int
    checkpoint: int
    finale: str
    initial: float


@dataclass(frozen=True, slots=True)
class ItemView:
    """One item of a scan: a statement or a nest."""

    statement: View | None
    nest: NestView | None


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A batch (`statements`) or a scan (`items`; `first`, `fused`, `last` where it is rotated)."""

    statements: tuple[View, ...]
    items: tuple[ItemView, ...]
    first: NestView | None
    fused: NestView | None
    last: NestView | None
    scan: bool
    reverse: bool
    split: str
    width: int


@dataclass(frozen=True, slots=True)
class SweepView:
    """A sweep for the template."""

    reverse: bool
    loads: tuple[Transfer, ...]
    stores: tuple[Transfer, ...]
    heads: tuple[Transfer, ...]
    crossing: tuple[Buffer, ...]
    zeroed: tuple[tuple[str, str, int], ...]
    carries: tuple[CarryView, ...]
    phases: tuple[PhaseView, ...]
    finale: tuple[View, ...]
    finale_loads: tuple[Transfer, ...]
    position: bool


@dataclass(frozen=True, slots=True)
class KernelView:
    """A kernel for the template."""

    name: str
    sweeps: tuple[SweepView, ...]
    buffers: tuple[Buffer, ...]
    gradients: tuple[Transfer, ...]


class KernelWriter:
    """Turns a kernel plan into texts; `tensors` gives the slot of each tensor name."""

    def __init__(
        self,
        kernel: Kernel,
        tensors: Mapping[str, int],
        names: Names,
        initial: Mapping[str, float],
    ) -> None:
        self.kernel, self.tensors, self.names, self.initial = kernel, tensors, names, initial
        self.arrays = {a.name: a for a in kernel.arrays}
        self.buffers: dict[str, Buffer] = {}
        self.crossing = {n for s in kernel.sweeps for n in (*s.fetches, *s.spills)}
        self.gradients: dict[str, Transfer] = {}

    def write(self) -> KernelView:
        """The view of the kernel."""
        sweeps = tuple(self.sweep(n, s) for n, s in enumerate(self.kernel.sweeps))
        return KernelView(
            self.kernel.name, sweeps, tuple(self.buffers.values()), tuple(self.gradients.values())
        )

    def sweep(self, number: int, sweep: Sweep) -> SweepView:
        storage = self.storage(number, sweep)
        done: set[str] = set(sweep.fetches)
        phases = tuple(self.phase(p, storage, done) for p in sweep.phases)
        used = self.mentioned(sweep)
        heads = [
            self.transfer(storage, n, f"{self.arrays[n].role} {n}")
            for n in used
            if self.arrays[n].role in ("param", "buffer")
        ]
        for name, tensor in self.kernel.param_gradients:
            if name in used:
                self.gradients.setdefault(name, self.transfer(storage, name, tensor))
        last = [n for s in sweep.finale for n in reads(s) if self.arrays[n].role == "seed"]
        return SweepView(
            reverse=sweep.reverse,
            loads=tuple(self.transfer(storage, a, t) for a, t in sweep.loads),
            stores=tuple(self.transfer(storage, a, t) for a, t in sweep.stores),
            heads=tuple(heads),
            crossing=tuple(
                self.buffers[n]
                for n in (storage.places[m].base + "_all" for m in used if m in self.crossing)
            ),
            zeroed=self.zeroed(sweep, storage),
            carries=tuple(self.carry(c, storage) for c in sweep.carries),
            phases=phases,
            finale=tuple(view(s, storage, "0", batch=False) for s in sweep.finale),
            finale_loads=tuple(
                self.transfer(storage, n, f"grad_final {self.arrays[n].of}") for n in last
            ),
            position=any(
                isinstance(node, Position)
                for p in sweep.phases
                for s in statements_of(p)
                for node in scalars(s.body)
            ),
        )

    def mentioned(self, sweep: Sweep) -> list[str]:
        """Arrays of a sweep, each once, in order of first use."""
        names = [n for a in sweep.loads for n in a[:1]]
        names += [n for c in sweep.carries for n in (c.before, c.after)]
        for phase in sweep.phases:
            for statement in statements_of(phase):
                names += [*reads(statement), statement.target]
        for statement in sweep.finale:
            names += [*reads(statement), statement.target]
        return list(dict.fromkeys(names))

    def storage(self, number: int, sweep: Sweep) -> Storage:
        """Decide the places of a sweep's arrays and declare their buffers."""
        places: dict[str, Place] = {}
        storage = Storage(places, self.names)
        followers = {c.after: c for c in sweep.carries}
        leaders = {c.before for c in sweep.carries}
        backwards = {
            c.before
            for c in sweep.carries
            if sweep.reverse and not c.start.startswith("checkpoint ")
        }
        histories = {c.before for p in sweep.phases if isinstance(p, Scan) and p.history for c in p.carries}
        matrices = self.matrices(sweep)
        for name in self.mentioned(sweep):
            owner = followers[name].before if name in followers else name
            carried = name in followers or name in leaders
            array = self.arrays[name]
            later = (name in followers) != (owner in backwards) if carried else False
            kind = "head" if self.is_head(array, sweep) else "matrix" if name in matrices else "row"
            laned = kind != "row" and len(array.dims) == 2
            history = owner in histories
            shift = 1 if later and (kind == "row" or history) else 0
            axis = 1 if sweep.key_lanes else 0
            wish = self.arrays[owner].name
            tag = f"{wish}_{number}" if kind == "matrix" else wish
            base = self.names.of((owner, number if kind == "matrix" else ""), tag)
            places[name] = Place(array, base, kind, laned, axis, shift, history)
            self.declare(places[name], storage, name in self.crossing)
        return storage

    def is_head(self, array: Array, sweep: Sweep) -> bool:
        """Params, buffers, their gradients, and what exists once at the end of a sweep."""
        if array.role in ("param", "buffer"):
            return True
        if array.role == "seed" and any(array.name in reads(s) for s in sweep.finale):
            return True
        if any(array.name == s.target for s in sweep.finale):
            return True
        return self.is_param_gradient(array)

    def is_param_gradient(self, array: Array) -> bool:
        """Whether an array sums up the gradient of a param."""
        return array.name in dict(self.kernel.param_gradients)

    def matrices(self, sweep: Sweep) -> set[str]:
        """Arrays of two and more axes that live inside scans."""
        found: set[str] = set()
        stored = {a for a, _ in sweep.stores} | self.crossing
        for carry in sweep.carries:
            if len(self.arrays[carry.before].dims) > 1:
                found |= {carry.before, carry.after}
        for phase in sweep.phases:
            if isinstance(phase, Scan):
                for statement in statements_of(phase):
                    if len(self.arrays[statement.target].dims) > 1:
                        found.add(statement.target)
        return {n for n in found if n not in stored or n in {c.after for c in sweep.carries}}

    def declare(self, place: Place, storage: Storage, crosses: bool) -> None:
        extent = storage.extent(place)
        name = place.base + ("_all" if crosses else "")
        count = "1"
        if place.kind == "row":
            count = "C + 1"
        elif place.history:
            count = "C + 1"
        if name not in self.buffers:
            dims = ", ".join(map(str, place.array.dims))
            self.buffers[name] = Buffer(name, count, extent, f"[{dims}]", crosses, place.base)

    def transfer(self, storage: Storage, name: str, tensor: str) -> Transfer:
        place = storage.places[name]
        dims = place.array.dims
        outer = " * ".join(f"({storage.dim(d)})" for d in dims[:-1]) or "1"
        return Transfer(
            place.base,
            self.tensors.get(tensor, -1),
            storage.extent(place),
            outer if not place.laned else storage.dim(dims[0]),
            storage.dim(dims[-1]) if dims else "1",
            not dims,
            -2 if not dims else place.lane_axis if place.laned else -1,
            place.shift,
        )

    def carry(self, carry: Carry, storage: Storage) -> CarryView:
        place = storage.places[carry.before]
        start, finish = self.tensors.get(carry.start, -1), self.tensors.get(carry.finish, -1)
        check = carry.start.startswith("checkpoint ")
        finale = ""
        if carry.start.startswith("finale "):
            name = carry.start.removeprefix("finale ")
            finale = self.names.of((name, ""), name)
        return CarryView(
            self.transfer(storage, carry.before, carry.start),
            place.kind == "matrix",
            place.history,
            -1 if check else start,
            finish,
            start if check else -1,
            finale,
            self.initial.get(carry.start, 0.0),
        )

    def zeroed(self, sweep: Sweep, storage: Storage) -> tuple[tuple[str, str, int], ...]:
        """Row arrays that are only ever added to: (base, extent, first slot)."""
        written: dict[str, bool] = {}
        for phase in sweep.phases:
            items = phase.items if isinstance(phase, Scan) else phase.statements
            for item in items:
                for statement in [item] if isinstance(item, Statement) else item.statements:
                    row_sum = isinstance(item, Nest) and item.lane in statement.over
                    adds = statement.accumulate or row_sum
                    written.setdefault(statement.target, adds and _adds_first(statement, row_sum))
        names = [n for n, adds in written.items() if adds and n not in sweep.fetches]
        places = [storage.places[n] for n in names]
        return tuple((p.base, storage.extent(p), p.shift) for p in places if p.kind == "row")

    def phase(self, phase: Batch | Scan, storage: Storage, done: set[str]) -> PhaseView:
        if isinstance(phase, Batch):
            views = []
            for statement in phase.statements:
                views.append(view(self.first(statement, storage, done), storage, "t", batch=True))
            return PhaseView(tuple(views), (), None, None, None, False, False, "", 1)
        following = "t - 1" if phase.reverse else "t + 1"
        items = tuple(self.opening(item, storage, done) for item in phase.items)
        first = fused = last = None
        inner: Sequence[Item] = items
        if phase.rotated:
            head, tail = items[0], items[-1]
            assert isinstance(head, Nest) and isinstance(tail, Nest)
            start = "tc - 1" if phase.reverse else "0"
            first = nest_view(head, [Part(head.statements, start)], phase.carries, storage)
            parts = [Part(tail.statements, "t"), Part(head.statements, following, True)]
            fused = nest_view(tail, parts, phase.carries, storage)
            last = nest_view(tail, [Part(tail.statements, "t")], phase.carries, storage)
            inner = items[1:-1]
        views_ = tuple(self.item(i, phase, storage) for i in inner)
        nests = [first, fused, last, *(v.nest for v in views_)]
        wide = any(n.row_outputs for n in nests if n is not None)
        lane = next((i.lane.dim for i in items if isinstance(i, Nest)), None)
        split = storage.dim(lane) if phase.split and lane is not None else ""
        return PhaseView(
            (), views_, first, fused, last, True, phase.reverse, split, 4 if wide else 2
        )

    def item(self, item: Item, scan: Scan, storage: Storage) -> ItemView:
        if isinstance(item, Statement):
            return ItemView(view(item, storage, "t", batch=False, split=scan.split), None)
        return ItemView(None, nest_view(item, [Part(item.statements, "t")], scan.carries, storage))

    def opening(self, item: Item, storage: Storage, done: set[str]) -> Item:
        if isinstance(item, Statement):
            return self.first(item, storage, done)
        fresh = []
        for statement in item.statements:
            if item.lane in statement.over:
                done.add(statement.target)
                fresh.append(statement)
            else:
                fresh.append(self.first(statement, storage, done))
        return Nest(item.row, item.lane, tuple(fresh))

    def first(self, statement: Statement, storage: Storage, done: set[str]) -> Statement:
        """Assign instead of add, where nothing was written before and all is covered."""
        seen = statement.target in done
        done.add(statement.target)
        if not statement.accumulate or seen or _adds_first(statement, False):
            return statement
        if storage.places[statement.target].kind == "head":
            return statement
        return replace(statement, accumulate=False)


def _adds_first(statement: Statement, row_sum: bool) -> bool:
    """Whether a first contribution leaves part of the target unwritten."""
    plain = [index.variable for index in statement.index]
    return row_sum or None in plain or len(set(plain)) != len(plain)


def statements_of(phase: Batch | Scan) -> list[Statement]:
    """All statements of a phase."""
    if isinstance(phase, Batch):
        return list(phase.statements)
    found: list[Statement] = []
    for item in phase.items:
        found.extend([item] if isinstance(item, Statement) else item.statements)
    return found
