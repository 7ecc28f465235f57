"""Few heads with many values: blocks of values run as heads of their own, on threads of their own.

Along `Signature.parallel_dim` every formula works element by element. So a head of V values is the
same as n heads of V / n values that share whatever has no such axis (keys, queries, gates): grouped
heads, which the kernels have anyway, over views of the same tensors. The number of blocks depends
on sizes alone, so that the same call gives the same bits whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from .cpu_backend import Backward, CpuBackend
from .geometry import Geometry, Layout, Residuals, Tensors, saved_shapes, sum_in_order
from .prepared import Prepared, Result
from .signature import Poly, Signature

TASKS = 8  # from here on heads alone keep threads busy
LEAST = 32  # values of a block: what keys cost beside them is little
LEAST_TRAINED = 64  # with a backward, which sums over the blocks what has no values
SHORT = 256  # tokens of all sequences together; below, there is no time to save


def has(dims: Sequence[Poly], name: str) -> bool:
    """Whether the first axis of an array is the dim of that name."""
    return bool(dims) and dims[0] == (((name,), 1),)


def block_count(
    signature: Signature, geometry: Geometry, flat: Tensors, training: bool = True
) -> int:
    """How many blocks the values of a call are parted into; 1: they are not."""
    name, tasks, count = signature.parallel_dim, geometry.sequences * geometry.heads, 1
    if name is None or geometry.batch * geometry.tokens < SHORT:
        return 1
    size = geometry.sizes[name]
    least = LEAST_TRAINED if training else LEAST
    while tasks * count < TASKS and size % (2 * count * least) == 0:
        count *= 2
    views = Blocks(signature, Layout.of(signature), geometry, count)
    return count if count > 1 and views.fit(flat) else 1


@dataclass(frozen=True, slots=True)
class Blocks:
    """The tensors of a call as tensors of `count` times as many heads, and back."""

    signature: Signature
    layout: Layout
    geometry: Geometry
    count: int

    @property
    def name(self) -> str:
        """The dim whose blocks become heads."""
        assert self.signature.parallel_dim is not None
        return self.signature.parallel_dim

    @property
    def inner(self) -> Geometry:
        """The call as the kernels see it."""
        g = self.geometry
        sizes = {**g.sizes, self.name: g.sizes[self.name] // self.count}
        return replace(g, heads=g.heads * self.count, sizes=sizes)

    def axes(self) -> list[int | None]:
        """For each tensor of a call the axis of its heads, None where it has no values."""
        s = self.signature
        places = ((s.inputs, 2), (s.params, 0), (s.starts, 0), (s.buffers, 0), (s.states, 1))
        found = [axis if has(spec.dims, self.name) else None for g, axis in places for spec in g]
        return [*found, None, None]

    def residuals(self) -> Residuals:
        """Residuals as the kernels see them: of a token [V, ...], or room for a state."""
        found = []
        for shape, axes in saved_shapes(self.signature, self.geometry):
            last = len(axes)
            parted = (*shape[:1], shape[1] * self.count, *shape[2:last])
            found.append(((*parted, shape[last] // self.count, *shape[last + 1 :]), axes))
        return found

    def fit(self, flat: Tensors) -> bool:
        """Whether no tensor with values has fewer heads, and all residuals part evenly."""
        heads = [
            tensor.shape[axis]
            for tensor, axis in zip(flat, self.axes(), strict=True)
            if tensor is not None and axis is not None
        ]
        if any(count != self.geometry.heads for count in heads):
            return False
        specs, shapes = self.signature.saved, saved_shapes(self.signature, self.geometry)
        return all(
            spec.kind == "checkpoint" or has(spec.dims, self.name) for spec in specs
        ) and all(shape[len(axes)] % self.count == 0 for shape, axes in shapes)

    def part(self, tensor: torch.Tensor | None, axis: int | None) -> torch.Tensor | None:
        """(..., H, V, ...) as (..., H n, V / n, ...)."""
        if tensor is None or axis is None:
            return tensor
        heads, values = tensor.shape[axis : axis + 2]
        shape = (*tensor.shape[:axis], heads * self.count, values // self.count)
        return tensor.reshape(*shape, *tensor.shape[axis + 2 :])

    def join(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """(..., H n, V / n, ...) as (..., H, V, ...)."""
        heads, values = tensor.shape[axis : axis + 2]
        shape = (*tensor.shape[:axis], heads // self.count, values * self.count)
        return tensor.view(*shape, *tensor.shape[axis + 2 :])

    def total(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """The sum over the blocks of a head, in their order."""
        shape = (*tensor.shape[:axis], tensor.shape[axis] // self.count, self.count)
        return sum_in_order(tensor.view(*shape, *tensor.shape[axis + 1 :]), axis + 1)


class ForwardInBlocks:
    """A forward call whose values are parted."""

    def __init__(
        self, backend: CpuBackend, blocks: Blocks, flat: Tensors, training: bool, final: bool
    ) -> None:
        self.blocks, self.geometry, self.axes = blocks, blocks.geometry, blocks.axes()
        self.saved = [shape for shape, _ in saved_shapes(blocks.signature, blocks.geometry)]
        parts, residuals = self._parts(flat), blocks.residuals()
        self.run = backend.forward(blocks.inner, parts, training, final, residuals)

    def _parts(self, flat: Tensors) -> list[torch.Tensor | None]:
        return [self.blocks.part(t, axis) for t, axis in zip(flat, self.axes, strict=True)]

    def __call__(self, flat: Tensors, clean: bool = False) -> Result:
        """Run it."""
        y, finals, saved = self.run(self._parts(flat), clean)
        joined = [self.blocks.join(final, 1) for final in finals]
        shaped = [t.view(shape) for t, shape in zip(saved, self.saved, strict=False)]
        return self.blocks.join(y, 2), joined, shaped


class BackwardInBlocks:
    """A backward call whose values are parted; what has no values gets the sum of all blocks."""

    def __init__(
        self, backend: CpuBackend, blocks: Blocks, tensors: Tensors, wanted: Sequence[bool]
    ) -> None:
        signature = blocks.signature
        self.blocks, self.axes = blocks, blocks.axes()
        self.saved = [shape for shape, _ in blocks.residuals()]
        inputs, params = len(signature.inputs), len(signature.params)
        self.results = [2] * inputs + [0] * params + [1] * len(signature.states)
        specs = (signature.inputs, signature.params, signature.states)
        self.joined = [has(spec.dims, blocks.name) for group in specs for spec in group]
        self.run = backend.backward(blocks.inner, self._parts(tensors), wanted)

    def _parts(self, tensors: Tensors) -> list[torch.Tensor | None]:
        flat, ends = len(self.axes), len(self.axes) + len(self.saved)
        part = self.blocks.part
        found = [part(t, axis) for t, axis in zip(tensors[:flat], self.axes, strict=True)]
        for t, shape in zip(tensors[flat:ends], self.saved, strict=True):
            found.append(None if t is None else t.reshape(shape))
        seeds = [part(t, 1) for t in tensors[ends + 1 :]]
        return [*found, part(tensors[ends], 2), *seeds]

    def __call__(self, tensors: Tensors) -> list[torch.Tensor | None]:
        """Gradients as `Backward` gives them."""
        found: list[torch.Tensor | None] = []
        parts = zip(self.run(self._parts(tensors)), self.results, self.joined, strict=True)
        for gradient, axis, joined in parts:
            back = self.blocks.join if joined else self.blocks.total
            found.append(None if gradient is None else back(gradient, axis))
        return found


def forward(
    backend: CpuBackend, geometry: Geometry, flat: Tensors, training: bool, final: bool
) -> Prepared:
    """A forward call prepared, in blocks where that keeps more threads busy."""
    count = block_count(backend.signature, geometry, flat, training)
    if count == 1:
        return backend.forward(geometry, flat, training, final)
    blocks = Blocks(backend.signature, backend.layout, geometry, count)
    return ForwardInBlocks(backend, blocks, flat, training, final)


def backward(
    backend: CpuBackend, geometry: Geometry, tensors: Tensors, wanted: Sequence[bool]
) -> Backward | BackwardInBlocks:
    """A backward call prepared, in the blocks of the forward one."""
    count = block_count(backend.signature, geometry, tensors[: backend.layout.length])
    if count == 1:
        return backend.backward(geometry, tensors, wanted)
    blocks = Blocks(backend.signature, backend.layout, geometry, count)
    return BackwardInBlocks(backend, blocks, tensors, wanted)
