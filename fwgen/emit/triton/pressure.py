"""How many numbers the code of a token holds in registers at once, as a sum of block lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from fwgen.emit.triton.module import words

Blocks = tuple[str, ...]
"""The block lengths whose product is the size of a tensor; none for a scalar."""

_TYPICAL = 64
"""The length that is taken for every block to find the line where most is held."""


def pressure(
    lines: Sequence[str], shapes: Mapping[str, Blocks], kept: Collection[str]
) -> dict[Blocks, int]:
    """How many tensors of each shape live at the fullest line; `kept` names live on after it.

    A reduction holds the product that it sums up beside its operands.
    """
    live = {name for name in kept if name in shapes}
    fullest: Counter[Blocks] = Counter(shapes[name] for name in live)
    living = Counter(shapes[name] for name in live)
    for line in reversed(lines):
        target, _, text = line.partition(" = ")
        target = target.strip()
        operands = words(text or line) & shapes.keys()
        held = living + Counter(shapes[name] for name in operands - live)
        if "tl.sum(" in line or "tl.reduce(" in line:
            held[tuple(sorted({block for name in operands for block in shapes[name]}))] += 1
        fullest = max(fullest, held, key=_numbers)
        ended = {target} & live - operands if text else set()
        living += Counter(shapes[name] for name in operands - live)
        living -= Counter(shapes[name] for name in ended)
        live = (live - ended) | operands
    return {blocks: count for blocks, count in sorted(fullest.items()) if blocks}


def _numbers(held: Counter[Blocks]) -> int:
    return sum(count * _TYPICAL ** len(blocks) for blocks, count in held.items())


def formula(held: Mapping[Blocks, int]) -> str:
    """`3 * BLOCK_K * TILE_V + 5 * BLOCK_K`."""
    ordered = sorted(held.items(), key=lambda item: (-len(item[0]), item[0]))
    parts = [" * ".join([str(count), *blocks]) for blocks, count in ordered]
    return " + ".join(parts) or "1"
