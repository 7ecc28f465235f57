"""What the kernels of a generated module share, and lines of code with the names they assign."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fwgen.emit.triton.lanes import Kind, Lane, Lanes
from fwgen.emit.triton.names import Names
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Array
from fwgen.schedule.axes import Tiling


@dataclass(frozen=True, slots=True)
class Line:
    """A line of code, `depth` loops deep; `target` is the name it assigns, None: always kept."""

    target: str | None
    text: str
    depth: int = 0


@dataclass
class Module:
    """What all kernels of a module share: arrays and their names, lanes, tiling, used helpers.

    `pointers` names, for arrays in memory, the pointer to the array of this head (and token);
    `wide` arrays are in memory because they are larger than registers.
    """

    arrays: dict[str, Array]
    names: dict[str, str]
    pointers: Mapping[str, str]
    lanes: Lanes
    tiling: Tiling | None
    fresh: Names
    integers: frozenset[str] = frozenset()
    wide: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    work: dict[tuple[str, ...], None] = field(default_factory=dict)

    def axes(self, array: str, rows: int | None = None) -> tuple[Lane, ...]:
        """The lanes of a program's part of an array; `rows` is an axis that a loop runs along."""
        tiled = self.tiling.axis(array) if self.tiling else None
        kinds: dict[int | None, Kind] = {tiled: "tile", rows: "rows"}
        dims = self.arrays[array].dims
        return tuple(self.lanes.get(dim, kinds.get(n, "whole")) for n, dim in enumerate(dims))

    def grid(self, array: str) -> tuple[str, str]:
        """Names of the offsets and of the mask of a whole array; "" for scalars."""
        return self.lanes.grid(self.axes(array))

    def shape(self, array: str) -> str:
        """The shape of an array's tensor: `(TILE_V, BLOCK_K)`."""
        return shape_of(self.axes(array))

    def is_late(self, array: str) -> bool:
        """Whether an array is read where it is used: a matrix that is the same for all tokens."""
        info = self.arrays[array]
        return info.role in ("param", "buffer") and len(info.dims) >= 2

    @functools.cached_property
    def flags(self) -> frozenset[str]:
        """Inputs that may hold integers."""
        return frozenset(a.name for a in self.arrays.values() if not a.floating)


def shape_of(lanes: Sequence[Lane]) -> str:
    """The shape of a tensor over lanes: `(TILE_V, BLOCK_K)`."""
    blocks = [lane.block for lane in lanes]
    return f"({', '.join(blocks)}{',' if len(blocks) == 1 else ''})"


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
            kept.append("    " * line.depth + line.text)
    return kept[::-1]


def words(text: str) -> set[str]:
    """The identifiers in a piece of code."""
    return set(re.findall(r"[A-Za-z_]\w*", text))
