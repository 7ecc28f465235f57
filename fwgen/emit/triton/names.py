"""Python names for arrays, sizes and index ranges inside a generated Triton module."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

from fwgen.emit.triton.functions import HELPERS
from fwgen.ir.dims import Dim

# What the templates and the printed helpers call their own things.
RESERVED = (
    "triton", "tl", "torch", "program", "sequence", "head", "tile", "tiles", "batch", "start",
    "length", "token", "step", "slot", "begin", "first", "count", "chunk", "chunks", "row",
    "row_at", "interval", "t", "T", "H", "N", "B", "tokens", "warps", "largest", "plan",
    "cu_seqlens", "position", "sizes", "inputs", "params", "buffers", "states", "finals",
    "saved", "training", "want_final", "wanted", "grad_y", "grad_finals", "replay", "results",
    "forward", "backward", "parts", "device", "grid", "recurrent_forward", "recurrent_backward",
    "recurrent_step", "rows", "total", "like", "stop", "tile_stride", "slots", "stage",
    "saved_row", "stage_row", "dtype", "fresh", "found", "NamedTuple", "strides",
    "state_strides", "whole", "take", "LEADING", "block", "slots",
    "landed", "lengths", "two_slots", "output_at", "shared", "shared_row", "stage_ptr",
    "shared_ptr", "refusal", "direction", "ROOM", "MOST", "room", "held", "shift", "options",
)  # fmt: skip


class Names:
    """Hands out distinct identifiers; a name that is taken gets underscores appended."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        own = (*RESERVED, *HELPERS, *keyword.kwlist, *keyword.softkwlist, *dir(builtins))
        self.taken = {*own, *reserved}
        self.numbers: dict[str, int] = {}

    def new(self, wanted: str) -> str:
        """A fresh name, `wanted` itself where that is free."""
        while wanted in self.taken:
            wanted += "_"
        self.taken.add(wanted)
        return wanted

    def numbered(self, wanted: str) -> str:
        """A fresh name, `wanted_2`, `wanted_3`, ... where `wanted` is taken."""
        name, number = wanted, self.numbers.get(wanted, 1)
        while name in self.taken:
            number += 1
            name = f"{wanted}_{number}"
        self.numbers[wanted] = number
        self.taken.add(name)
        return name


def dim_label(dim: Dim) -> str:
    """What a size is called inside an identifier: `K`, `2K`, `2K_plus_1`."""
    text = str(dim).replace("*", "").replace(" + ", "_plus_").replace(" - ", "_minus_")
    return re.sub(r"\W", "_", text)
