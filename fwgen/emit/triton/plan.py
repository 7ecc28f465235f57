"""The cost model of the kernels: blocks, tiles and what is held, as formulas of the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fwgen.emit.triton.kernels import Recurrent
from fwgen.emit.triton.lanes import Lane
from fwgen.emit.triton.pressure import formula, pressure
from fwgen.emit.triton.text import size

TILE = 16
"""Length of a tile beside which a loop walks another axis."""
_ROOM = {"forward": 2048, "backward": 1024}
_LARGE_ROOM = {"forward": 4096, "backward": 2048}
MOST = {"forward": 33600, "backward": 24576}
"""Numbers that a program may hold at once: what ahead-of-time compilation showed not to spill."""
_EACH = 3584
"""Numbers held by the backward for which one more warp is worth it: 112 in each thread."""
LIMIT = 65536
"""Numbers of the largest block that a program may work on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Formulas over the sizes and `room`, the numbers that a block should have.

    `blocks` are names of block lengths with their formulas, those of `tiled` split over programs;
    `crowd` is the largest block beside the tiles, "" where there is none. `held` has what lives at
    once, forward and backward.
    """

    blocks: tuple[tuple[str, str], ...]
    tiled: tuple[str, ...]
    crowd: str
    tiles: str
    largest: str
    held: dict[str, str]
    room: dict[str, int]
    most: dict[str, int]
    each: int
    limit: int
    sizes: str


def plan_of(found: Recurrent, forward: Sequence[str], backward: Sequence[str]) -> Plan:
    """The formulas of a module whose tokens have the given code."""
    works = [" * ".join(blocks) or "1" for blocks in found.module.work] or ["1"]
    return Plan(
        blocks=_blocks(found),
        tiled=tuple(x.block for x in found.module.lanes.known.values() if x.kind == "tile"),
        crowd=_crowd(found),
        tiles=_tiles(found),
        largest=_most(works),
        held=_held(found, forward, backward),
        room=_LARGE_ROOM if found.large else _ROOM,
        most=MOST,
        each=_EACH,
        limit=LIMIT,
        sizes=", ".join(f"{old} = {{{new}}}" for old, new in found.sizes.items()),
    )


def _most(formulas: Sequence[str]) -> str:
    different = list(dict.fromkeys(formulas))
    return f"max({', '.join(different)})" if len(different) > 1 else different[0]


def _held(found: Recurrent, forward: Sequence[str], backward: Sequence[str]) -> dict[str, str]:
    module = found.module
    shapes = {
        module.names[name]: tuple(sorted(lane.block for lane in module.axes(name)))
        for name in module.arrays
        if name not in module.wide
    }
    shapes |= found.shapes
    narrow = [s for s in found.states if not s.wide]
    ends = {"forward": [s.next for s in narrow], "backward": [s.adjoint for s in narrow]}
    lines = {"forward": forward, "backward": backward}
    return {way: formula(pressure(lines[way], shapes, ends[way])) for way in lines}


def _blocks(found: Recurrent) -> tuple[tuple[str, str], ...]:
    """Block lengths and how they follow from sizes; what a loop walks last, it fits the others."""
    order = {"whole": 0, "tile": 1, "rows": 2}
    blocks = []
    for lane in sorted(found.module.lanes.known.values(), key=lambda lane: order[lane.kind]):
        value = f"triton.next_power_of_2({size(lane.dim)})"
        if lane.kind == "tile" and found.large:
            value = f"min({value}, {TILE})"
        elif lane.kind != "whole":
            value = f"min({value}, max(1, room // {_beside(found, lane)}))"
        blocks.append((lane.block, value))
    return tuple(blocks)


def _beside(found: Recurrent, lane: Lane) -> str:
    """The most numbers that go with one index value of a lane."""
    works = [work for work in found.module.work if lane.block in work]
    others = [" * ".join(b for b in work if b != lane.block) for work in works]
    widest = _most([o for o in others if o] or ["1"])
    return f"({widest})" if " * " in widest and not widest.startswith("max(") else widest


def _crowd(found: Recurrent) -> str:
    """What a program holds whole beside its tile: whole matrices."""
    whole = {lane.block for lane in found.module.lanes.known.values() if lane.kind == "whole"}
    beside = [work for work in found.module.work if len(work) > 1 and whole.issuperset(work)]
    tiled = _tiles(found) != "1" and not found.large
    return _most([" * ".join(work) for work in beside]) if beside and tiled else ""


def _tiles(found: Recurrent) -> str:
    for lane in found.module.lanes.known.values():
        if lane.kind == "tile":
            return f"triton.cdiv({size(lane.dim)}, {lane.block})"
    return "1"
