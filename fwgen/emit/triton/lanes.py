"""Lanes: the blocks of index values that tensors of a kernel run over, and their expansion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fwgen.emit.triton.names import Names, dim_label
from fwgen.emit.triton.text import ADD, AND, COMPARE, Text, binary, joined, plus, size, times
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Var

Kind = Literal["whole", "tile", "rows"]
_BLOCKS: dict[Kind, str] = {"whole": "BLOCK", "tile": "TILE", "rows": "ROWS"}
_STARTS: dict[Kind, str] = {"whole": "", "tile": "tile * {} + ", "rows": "block * {} + "}


@dataclass(frozen=True, slots=True)
class Lane:
    """A power-of-two block over a dim: all of it, the part of one program, or of a loop's turn.

    `at` names the index values, `inside` the mask of those below the size, `block` the constant
    length of the block.
    """

    dim: Dim
    kind: Kind
    at: str
    inside: str
    block: str


@dataclass
class Lanes:
    """The lanes of a module; names are handed out on demand and stay the same for all kernels."""

    names: Names
    labels: Mapping[Dim, str] = field(default_factory=dict)
    known: dict[tuple[Dim, Kind], Lane] = field(default_factory=dict)
    products: dict[tuple[Lane, ...], tuple[str, str]] = field(default_factory=dict)

    def get(self, dim: Dim, kind: Kind) -> Lane:
        """The lane over a dim."""
        if (dim, kind) not in self.known:
            label = self.labels.get(dim, dim_label(dim))
            block = f"{_BLOCKS[kind]}_{label}"
            label = f"{label}_tile" if kind == "tile" and (dim, "whole") in self.known else label
            label = f"rows_{label}" if kind == "rows" else label
            names = (f"at_{label}", f"in_{label}", block)
            self.known[dim, kind] = Lane(dim, kind, *map(self.names.new, names))
        return self.known[dim, kind]

    def grid(self, lanes: tuple[Lane, ...]) -> tuple[str, str]:
        """Names of the row-major offsets and of the mask over several lanes ("" for none)."""
        if len(lanes) < 2:
            return (lanes[0].at, lanes[0].inside) if lanes else ("", "")
        if lanes not in self.products:
            label = "_".join(lane.at.removeprefix("at_") for lane in lanes)
            self.products[lanes] = (self.names.new(f"at_{label}"), self.names.new(f"in_{label}"))
        return self.products[lanes]

    def definitions(self, rows: Dim | None = None) -> list[tuple[str, str]]:
        """(name, expression) of everything handed out, each after what it uses.

        Of the kernel, or with `rows` what changes in each turn of a loop over that dim.
        """
        lines: list[tuple[str, str]] = []
        for lane in self.known.values():
            if _turns(lane) == rows:
                start = _STARTS[lane.kind].format(lane.block)
                lines.append((lane.at, f"{start}tl.arange(0, {lane.block})"))
                lines.append((lane.inside, f"{lane.at} < {size(lane.dim)}"))
        for lanes, (at, inside) in self.products.items():
            if rows != next((lane.dim for lane in lanes if lane.kind == "rows"), None):
                continue
            space = Space.of(lanes)
            indices = [space.index(v) for v in space.order]
            lines.append((at, str(row_major(indices, [lane.dim for lane in lanes]))))
            lines.append((inside, str(space.mask(space.order))))
        return lines


def _turns(lane: Lane) -> Dim | None:
    return lane.dim if lane.kind == "rows" else None


def row_major(indices: Sequence[Text], dims: Sequence[Dim]) -> Text:
    """The offset of an element: `i * K + j`."""
    parts: list[Text] = []
    for axis, index in enumerate(indices):
        inner = Dim.of(1)
        for dim in dims[axis + 1 :]:
            inner = inner * dim
        parts.append(times(inner, index))
    return joined("+", ADD, parts) if parts else Text("0")


@dataclass(frozen=True)
class Space:
    """The variables of a statement in the order of its tensor's axes, each with its lane."""

    order: tuple[Var, ...]
    lanes: Mapping[Var, Lane]

    @staticmethod
    def of(lanes: tuple[Lane, ...]) -> Space:
        """A space of fresh variables over the given lanes."""
        order = tuple(Var(f"axis{n}", lane.dim) for n, lane in enumerate(lanes))
        return Space(order, dict(zip(order, lanes, strict=True)))

    def expand(self, name: str, variables: Sequence[Var]) -> Text:
        """A tensor over `variables`, laid out so that it broadcasts over the whole space."""
        if not variables:
            return Text(name)
        wanted = [v for v in self.order if v in variables]
        if wanted != list(variables):
            axes = [list(variables).index(v) for v in wanted]
            plain = "tl.trans({})" if len(axes) == 2 else "tl.permute({}, {})"
            name = plain.format(name, tuple(axes))
        if len(wanted) == len(self.order):
            return Text(name)
        return Text(f"{name}[{', '.join(':' if v in wanted else 'None' for v in self.order)}]")

    def index(self, var: Var) -> Text:
        """The index values of a variable."""
        return self.expand(self.lanes[var].at, (var,))

    def mask(self, variables: Sequence[Var]) -> Text:
        """True where all of `variables` are inside their dims."""
        masked = [v for v in self.order if v in variables]
        return joined("&", AND, [self.expand(self.lanes[v].inside, (v,)) for v in masked])


@dataclass(frozen=True)
class Place:
    """Where an access points: index text over a space.

    `var`: it is that variable of the space. `dim`: it is this constant. `natural`: never negative.
    `below`: always less than this size.
    """

    text: Text
    var: Var | None = None
    dim: Dim | None = None
    natural: bool = False
    below: Dim | None = None


def constant(dim: Dim) -> Place:
    """The place that is the same for all lanes."""
    return Place(size(dim), dim=dim, natural=never_negative(dim))


def never_negative(dim: Dim) -> bool:
    """Whether a size cannot be negative, named dims being at least 1."""
    if any(c < 0 and names for names, c in dim.terms):
        return False
    return sum(c for _, c in dim.terms) >= 0


def inside(place: Place, dim: Dim) -> list[Text] | None:
    """Conditions that keep an access inside an axis; None where it never is."""
    if place.dim is not None:
        if never_negative(place.dim) and never_negative(dim - place.dim - 1):
            return []
        if never_negative(-place.dim - 1) or never_negative(place.dim - dim):
            return None
    found = []
    if not place.natural:
        found.append(binary(">=", COMPARE, place.text, Text("0")))
    if place.below != dim:
        found.append(binary("<", COMPARE, place.text, size(dim)))
    return found


def shifted(place: Place, offset: Dim) -> Place:
    """A place plus a size."""
    if not offset.terms:
        return place
    if place.dim is not None:
        return constant(place.dim + offset)
    return Place(plus(place.text, offset), natural=place.natural and never_negative(offset))
