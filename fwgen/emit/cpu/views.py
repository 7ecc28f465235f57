"""What a kernel looks like to the template: tensors, buffers, sweeps and phases, all as texts."""

from __future__ import annotations

from dataclasses import dataclass

from fwgen.emit.cpu.nest import NestView
from fwgen.emit.cpu.statements import View


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of the work space: `count` times `extent` reals.

    `whole`: a row for every token of the sequence; `alias` then points to the chunk's first.
    `shared`: another buffer whose memory it takes, unless the tensor `unless` (-1: none) is there.
    """

    name: str
    count: str
    extent: str
    comment: str
    whole: bool = False
    alias: str = ""
    shared: str = ""
    unless: int = -1

    @property
    def always_shared(self) -> bool:
        """Whether it needs no memory of its own."""
        return bool(self.shared) and self.unless < 0

    @property
    def size(self) -> str:
        """The number of reals as C++."""
        count = "call.longest" if self.whole else self.count
        if self.extent == "1":
            return count
        return self.extent if count == "1" else f"({count}) * {self.extent}"


@dataclass(frozen=True, slots=True)
class Transfer:
    """An array exchanged with a tensor: C++ pointer, tensor slot, and its shape there.

    `axis`: the laned axis of a matrix, -1 for rows, -2 for a scalar. `rows`: see `Place`.
    """

    base: str
    tensor: int
    extent: str
    outer: str
    last: str
    scalar: bool
    axis: int
    shift: int = 0
    rows: str = ""


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
class PairView:
    """The nests of a scan over pairs of tokens: `first`, `fused`, `last` as in a rotated scan.

    `alone` and `closing` are the nests of a last token without a second one. `repairs` complete the
    reads of a second token.
    """

    first: NestView | None
    fused: NestView
    last: NestView | None
    alone: NestView
    closing: NestView | None
    repairs: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class BatchView:
    """Statements for the tokens of a chunk.

    Those of a run share one loop over tokens; it consists of groups that share one over lanes.
    """

    runs: tuple[tuple[tuple[View, ...], ...], ...]
    seconds: bool
    scan: bool = False


@dataclass(frozen=True, slots=True)
class ScanView:
    """A scan: `items`, and `first`, `fused`, `last` where it is rotated, or `pair`."""

    items: tuple[ItemView, ...]
    first: NestView | None
    fused: NestView | None
    last: NestView | None
    pair: PairView | None
    reverse: bool
    split: str
    width: int
    scan: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """A condition in C++: whether one of the results that `comment` lists is wanted."""

    name: str
    condition: str
    comment: str


@dataclass(frozen=True, slots=True)
class SweepView:
    """A sweep for the template. `wanted` is its condition, `phases_wanted` those inside it.

    `soon` are the bases of rows that are stored while a scan runs.
    """

    reverse: bool
    loads: tuple[Transfer, ...]
    inner: str
    held: tuple[tuple[str, int, bool], ...]
    stores: tuple[Transfer, ...]
    soon: tuple[str, ...]
    heads: tuple[Transfer, ...]
    crossing: tuple[Buffer, ...]
    zeroed: tuple[tuple[str, str, int], ...]
    carries: tuple[CarryView, ...]
    phases: tuple[BatchView | ScanView, ...]
    finale: tuple[View, ...]
    first_scan: int
    finale_loads: tuple[Transfer, ...]
    position: bool
    wanted: str
    phases_wanted: tuple[str, ...]

    def lead(self, store: Transfer) -> str:
        """How many tokens before its turn a stored row is asked for."""
        if store.base not in self.soon:
            return "0"
        return "-fw::SOON" if self.reverse else "fw::SOON"

    @property
    def asked(self) -> tuple[str, ...]:
        """What is asked of memory while the first scan runs."""
        return tuple(f"{x.base}_ahead{x.tensor}" for x in (*self.loads, *self.stores))


@dataclass(frozen=True, slots=True)
class KernelView:
    """A kernel for the template."""

    name: str
    sweeps: tuple[SweepView, ...]
    buffers: tuple[Buffer, ...]
    gradients: tuple[Transfer, ...]
    extents: tuple[tuple[str, str], ...]
    choices: tuple[Choice, ...]
