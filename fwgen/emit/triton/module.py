"""What the kernels of a generated module share, and lines of code with the names they assign."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fwgen.emit.triton.lanes import Lanes, Space
from fwgen.emit.triton.names import Names
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Array, Var
from fwgen.schedule.axes import Tiling


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
