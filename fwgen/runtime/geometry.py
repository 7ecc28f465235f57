"""Where the tensors of a call lie, and what the kernels need to know of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from .pages import empty
from .signature import Poly, Signature
from .sizes import evaluate

Tensors = Sequence[torch.Tensor | None]
Residuals = Sequence[tuple[tuple[int, ...], str]]
"""Shape and leading axes of each residual."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each group of tensors lies in the flat list of a call; the last two are
    `cu_seqlens` and `position`."""

    inputs: slice
    params: slice
    starts: slice
    buffers: slice
    states: slice
    length: int
    carried: tuple[tuple[int, int | None], ...]
    """For each state its place and that of its learned start."""

    @staticmethod
    def of(signature: Signature) -> Layout:
        """The layout of a rule's calls."""
        groups = (signature.inputs, signature.params, signature.starts, signature.buffers)
        ends = [0]
        for group in (*groups, signature.states):
            ends.append(ends[-1] + len(group))
        inputs, params, starts_at, buffers, states = [slice(a, b) for a, b in pairwise(ends)]
        starts = iter(range(ends[2], ends[3]))
        carried = tuple(
            (ends[4] + i, next(starts) if state.init is None else None)
            for i, state in enumerate(signature.states)
        )
        return Layout(inputs, params, starts_at, buffers, states, ends[-1] + 2, carried)


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the kernels need to know of a call: `dtype` is that of computation and states."""

    batch: int
    tokens: int
    heads: int
    sequences: int
    sizes: dict[str, int]
    dtype: torch.dtype
    output_dtype: torch.dtype
    device: torch.device

    def shape(self, dims: Sequence[Poly]) -> tuple[int, ...]:
        """Sizes of the dims of one token and head."""
        return tuple(evaluate(dim, self.sizes) for dim in dims)


def groups(layout: Layout, geometry: Geometry, flat: Tensors) -> tuple[Any, ...]:
    """Inputs, params, buffers, states (learned starts expanded), boundaries, positions."""
    states = []
    for index, start in layout.carried:
        state = flat[index]
        if state is None and start is not None:
            learned = flat[start]
            assert learned is not None
            state = learned.to(geometry.dtype).expand(geometry.sequences, *learned.shape)
        states.append(state)
    lists = (list(flat[g]) for g in (layout.inputs, layout.params, layout.buffers))
    return (*lists, states, flat[-2], flat[-1])


def interval(tokens: int) -> int:
    """Tokens from one checkpoint of the Triton kernels to the next: a power of two of sqrt(tokens).

    Comparisons alone, so that of a symbolic length only the range is fixed.
    """
    shift = 0
    while tokens > 1 << 2 * shift:
        shift += 1
    return int(1 << shift)


def saved_shapes(
    signature: Signature, geometry: Geometry, backend: str = "cpu"
) -> list[tuple[tuple[int, ...], str]]:
    """Shape and leading axes of each residual.

    Triton kernels keep all states together in the first; the others are empty.
    """
    found: list[tuple[tuple[int, ...], str]] = []
    if backend == "triton" and signature.saved:
        slots = geometry.batch * geometry.tokens // interval(geometry.tokens) + geometry.sequences
        elements = sum(math.prod(geometry.shape(spec.dims)) for spec in signature.states)
        return [
            ((slots, geometry.heads, elements), "nh"),
            *[((0,), "")] * (len(signature.saved) - 1),
        ]
    for spec in signature.saved:
        dims = geometry.shape(spec.dims)
        if spec.kind == "token":
            found.append(((geometry.batch, geometry.heads, geometry.tokens, *dims), "nht"))
        else:
            rows = geometry.batch * geometry.tokens
            slots = rows // spec.interval + geometry.sequences
            found.append(((slots, geometry.heads, *dims), "nh"))
    return found


FEW = 64  # terms that are added one after the other


def sum_in_order(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """The sum over one axis, added in index order whatever the number of threads.

    More than a few terms are added in blocks of neighbours first, side by side: packed sequences
    come in tens of thousands, and so added lose fewer digits than one after the other.
    """
    count = tensor.shape[axis]
    if count > FEW:
        blocks = math.isqrt(count)
        even = count // blocks * blocks
        shape = (*tensor.shape[:axis], blocks, count // blocks, *tensor.shape[axis + 1 :])
        parts = tensor.narrow(axis, 0, even).reshape(shape)
        rest = tensor.narrow(axis, even, count - even)
        tensor = torch.cat([sum_in_order(parts, axis + 1), rest], axis)
    first, *others = tensor.unbind(axis)
    if not others:
        return first.contiguous()
    if first.device.type == "cpu":
        total = torch.add(first, others[0], out=empty(first.shape, first.dtype, first.device))
    else:
        total = first + others[0]
    for part in others[1:]:
        total += part
    return total
