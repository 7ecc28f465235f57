"""A kernel for the template: tensors, buffers, and the phases of each sweep with their texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fwgen.emit.cpu.choices import Choices
from fwgen.emit.cpu.fusion import values
from fwgen.emit.cpu.names import Names
from fwgen.emit.cpu.phases import PhaseWriter, added
from fwgen.emit.cpu.sharing import shared_rows
from fwgen.emit.cpu.statements import view
from fwgen.emit.cpu.storage import Kind, Place, Storage
from fwgen.emit.cpu.views import (
    Buffer,
    CarryView,
    KernelView,
    SweepView,
    Transfer,
)
from fwgen.ir.carries import Carry
from fwgen.ir.nodes import Array, Position
from fwgen.ir.walk import reads, scalars
from fwgen.schedule.plan import Kernel, Scan, Sweep, statements_of


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
        self.extents: dict[str, str] = {}
        self.choices = Choices(kernel, tensors, names)
        self.values = values(kernel)
        self.rows: dict[str, str] = {}
        """The bases of rows that may share memory, "" for other arrays."""

    def write(self) -> KernelView:
        """The view of the kernel."""
        sweeps = tuple(self.sweep(n, s) for n, s in enumerate(self.kernel.sweeps))
        self.share()
        return KernelView(
            self.kernel.name,
            sweeps,
            tuple(self.buffers.values()),
            tuple(self.gradients.values()),
            tuple(self.extents.items()),
            tuple(self.choices.found.values()),
        )

    def sweep(self, number: int, sweep: Sweep) -> SweepView:
        """The view of one sweep; `number` tells its matrices from those of others."""
        storage = self.storage(number, sweep)
        self.local_rows(sweep, storage)
        writer = PhaseWriter(self.arrays, storage, set(sweep.fetches))
        phases = tuple(writer.phase(p) for p in sweep.phases)
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
        wanted, phases_wanted = self.choices.sweep(number)
        return SweepView(
            reverse=sweep.reverse,
            loads=tuple(
                self.transfer(storage, a, t) for a, t in sweep.loads if not t.startswith("mark ")
            ),
            inner=next((storage.places[a].base for a, t in sweep.loads if t == "mark inner"), ""),
            held=tuple(
                self.held(storage, a, t) for a, t in sweep.loads if t.startswith("mark held ")
            ),
            stores=tuple(self.transfer(storage, a, t) for a, t in sweep.stores),
            soon=tuple(dict.fromkeys(storage.places[n].base for n in _in_scans(sweep))),
            heads=tuple(heads),
            crossing=tuple(
                self.buffers[n]
                for n in (storage.places[m].base + "_all" for m in used if m in self.crossing)
            ),
            zeroed=self.zeroed(sweep, storage),
            carries=tuple(self.carry(c, storage) for c in sweep.carries),
            phases=phases,
            finale=tuple(view(s, storage, "0", batch=False) for s in sweep.finale),
            first_scan=next((n for n, p in enumerate(sweep.phases) if isinstance(p, Scan)), 0),
            finale_loads=tuple(
                self.transfer(storage, n, f"grad_final {self.arrays[n].of}") for n in last
            ),
            position=any(
                isinstance(node, Position)
                for p in sweep.phases
                for s in statements_of(p)
                for node in scalars(s.body)
            ),
            wanted=wanted,
            phases_wanted=phases_wanted,
        )

    def share(self) -> None:
        """Let rows take the memory of others that are done with."""
        rows = [n for n, base in self.rows.items() if base]
        stored = {a: t for s in self.kernel.sweeps for a, t in s.stores}
        for name, owner in shared_rows(self.kernel.sweeps, rows, self.arrays).items():
            base, place = self.rows[name], self.rows[owner]
            tensor = self.tensors[stored[owner]] if owner in stored else -1
            self.buffers[base] = replace(self.buffers[base], shared=place, unless=tensor)

    def local_rows(self, sweep: Sweep, storage: Storage) -> None:
        """Note the rows that are made and used within chunks; none is one that moves otherwise."""
        carried = {n for c in sweep.carries for n in (c.before, c.after)}
        moved = {*(a for a, _ in sweep.loads), *carried, *added(sweep, self.arrays), *self.crossing}
        for name in self.mentioned(sweep):
            place, array = storage.places[name], self.arrays[name]
            plain = array.role == "local" and bool(array.dims) and place.kind == "row"
            if name in moved or not plain:
                self.rows[name] = ""
            self.rows.setdefault(name, place.base)

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
        storage = Storage(places, self.names, self.extents)
        followers = {c.after: c for c in sweep.carries}
        leaders = {c.before for c in sweep.carries}
        backwards = {
            c.before
            for c in sweep.carries
            if sweep.reverse and not c.start.startswith("checkpoint ")
        }
        histories = {
            c.before for p in sweep.phases if isinstance(p, Scan) and p.history for c in p.carries
        }
        matrices = self.matrices(sweep)
        passing = self.passing(sweep)
        names = self.mentioned(sweep)
        earlier = [n for n in names if self.arrays[n].role == "earlier"]
        for name in (n for n in names if n not in earlier):
            owner = followers[name].before if name in followers else name
            carried = name in followers or name in leaders
            array = self.arrays[name]
            later = (name in followers) != (owner in backwards) if carried else False
            kind: Kind = "matrix" if name in matrices else "row"
            if self.is_head(array, sweep):
                kind = "head"
            if name in self.values:
                kind = "value"
            laned = kind != "row" and len(array.dims) == 2
            history = owner in histories
            shift = 1 if later and (kind == "row" or history) else 0
            axis = 1 if sweep.key_lanes and kind == "matrix" else 0
            wish = self.arrays[owner].name
            tag = f"{wish}_{number}" if kind == "matrix" else wish
            base = self.names.of((owner, number if kind == "matrix" else ""), tag)
            rows = f"{base}_rows" if name in passing else ""
            places[name] = Place(array, base, kind, laned, axis, shift, history, rows)
            if kind != "value":
                self.declare(places[name], storage, name in self.crossing)
        for name in earlier:
            place = places[self.arrays[name].of]
            places[name] = replace(place, array=self.arrays[name], shift=place.shift - 1)
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
        """Make room for an array in the work space."""
        extent = storage.extent(place)
        name = place.base + ("_all" if crosses else "")
        count = "1"
        if place.kind == "row" or place.history:
            count = "C + 1"
        if name not in self.buffers:
            dims = ", ".join(map(str, place.array.dims))
            self.buffers[name] = Buffer(name, count, extent, f"[{dims}]", crosses, place.base)

    def transfer(self, storage: Storage, name: str, tensor: str) -> Transfer:
        """How an array is exchanged with a tensor."""
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
            place.rows,
        )

    def carry(self, carry: Carry, storage: Storage) -> CarryView:
        """Where a carry starts and where it ends."""
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

    def held(self, storage: Storage, array: str, mark: str) -> tuple[str, int, bool]:
        """(pointer, tensor of the initial state, whether it starts at zero without one)."""
        state = f"state {mark.removeprefix('mark held ')}"
        base = storage.places[array].base
        return base, self.tensors[state], self.initial.get(state, 0.0) == 0

    def zeroed(self, sweep: Sweep, storage: Storage) -> tuple[tuple[str, str, int], ...]:
        """Row arrays that are only ever added to: (base, extent, first slot)."""
        places = [storage.places[n] for n in added(sweep, self.arrays)]
        return tuple((p.base, storage.extent(p), p.shift) for p in places if p.kind == "row")

    def passing(self, sweep: Sweep) -> set[str]:
        """Rows that are the same in a tensor: nothing is done to them but one load or store."""
        moved = [a for a, t in (*sweep.loads, *sweep.stores) if not t.startswith("mark ")]
        carried = {name for c in sweep.carries for name in (c.before, c.after)}
        other = {*carried, *added(sweep, self.arrays), *self.crossing}
        return {a for a in moved if moved.count(a) == 1 and self.arrays[a].dims} - other


def _in_scans(sweep: Sweep) -> list[str]:
    """Arrays that scans write."""
    scans = [phase for phase in sweep.phases if isinstance(phase, Scan)]
    return [statement.target for scan in scans for statement in statements_of(scan)]
