"""Runs the compiled C++ kernels of a rule on CPU tensors, through one array of 64-bit integers.

The array: N, H, T, addresses of the sequence boundaries and of the positions (0 = absent), the free
dims, then address, batch stride, token stride, head stride and head group of each tensor. What
depends only on shapes, strides and dtypes is prepared once; a call fills in addresses.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import InternalError
from .build import load
from .dense import Convert, conversion
from .geometry import Geometry, Layout, Residuals, Tensors, saved_shapes, sum_in_order
from .pages import empty
from .prepared import Result
from .signature import Signature, StateSpec, TensorSpec


def _entry(tensor: torch.Tensor, axes: str, heads: int) -> list[int]:
    """Address 0, strides and head group; `axes` names the leading axes, of `n`, `t`, `h`."""
    stride = {axis: tensor.stride(i) for i, axis in enumerate(axes)}
    group = heads // tensor.shape[axes.index("h")]
    return [0, stride.get("n", 0), stride.get("t", 0), stride.get("h", 0), group]


def _shape_entry(shape: Sequence[int], axes: str, heads: int) -> list[int]:
    """The entry of a contiguous tensor of that shape."""
    strides = {axis: math.prod(shape[i + 1 :]) for i, axis in enumerate(axes)}
    return [0, strides.get("n", 0), strides.get("t", 0), strides.get("h", 0), 1]


class _Plan:
    """A filled argument array but for addresses, and how to get those."""

    def __init__(self, signature: Signature, geometry: Geometry) -> None:
        self.geometry = geometry
        sizes = [geometry.sizes[name] for name in signature.free_dims]
        lead = [geometry.sequences, geometry.heads, geometry.tokens, 0, 0]
        self.values: list[int] = [*lead, *sizes]
        self.conversions: list[tuple[int, Convert]] = []
        self.given: list[tuple[int, int]] = []  # (slot, index in the list of given tensors)

    def take(self, index: int, tensor: torch.Tensor | None, axes: str, dtype: torch.dtype) -> None:
        """Append the entry of a given tensor (None: absent)."""
        if tensor is None:
            self.values += [0] * 5
            return
        convert = conversion(tensor, len(axes), dtype)
        if convert is not None:
            self.conversions.append((index, convert))
            tensor = convert(tensor)
        self.given.append((len(self.values), index))
        self.values += _entry(tensor, axes, self.geometry.heads)

    def make(self, shape: Sequence[int] | None, axes: str) -> int:
        """Append the entry of a tensor that the call allocates; gives its slot."""
        slot = len(self.values)
        entry = [0] * 5 if shape is None else _shape_entry(shape, axes, self.geometry.heads)
        self.values += entry
        return slot

    def integers(self, flat: Tensors) -> None:
        """Take the boundaries (as int64) and the positions, the last two tensors of a call."""
        for slot, index in ((3, len(flat) - 2), (4, len(flat) - 1)):
            tensor = flat[index]
            if tensor is not None:
                if tensor.dtype != torch.int64 or not tensor.is_contiguous():
                    self.conversions.append((index, lambda t: t.to(torch.int64).contiguous()))
                self.given.append((slot, index))

    def finish(self) -> None:
        """Freeze the array."""
        self.array = ctypes.c_int64 * len(self.values)
        self.template = bytes(self.array(*self.values))


def _run(function: Any, arguments: Any) -> None:
    status = function(arguments)
    if status == 1:
        raise MemoryError("fwgen: a CPU kernel found no memory for its work space")
    if status != 0:
        raise InternalError(f"a CPU kernel returned {status}; please report this with the rule")


class Forward:
    """A forward call, prepared for tensors of given shapes, strides and dtypes.

    `residuals` are their shapes and leading axes where they are not those of the call.
    """

    def __init__(
        self,
        function: Any,
        signature: Signature,
        layout: Layout,
        geometry: Geometry,
        flat: Tensors,
        training: bool,
        want_final: bool,
        residuals: Residuals | None = None,
    ) -> None:
        self.function, self.geometry, dtype = function, geometry, geometry.dtype
        plan = _Plan(signature, geometry)
        _take_call(plan, layout, flat, dtype)
        lead = (geometry.batch, geometry.tokens, geometry.heads)
        self.y_shape = (*lead, *geometry.shape(signature.output.dims))
        self.y_slot = plan.make(self.y_shape, "nth")
        self.made: list[tuple[int, tuple[int, ...]]] = []
        self.sparse: list[int] = []  # those that the kernel does not fill
        self.finals = len(signature.states) if want_final else 0
        for spec in signature.states:
            shape = (geometry.sequences, geometry.heads, *geometry.shape(spec.dims))
            slot = plan.make(shape if want_final else None, "nh")
            if want_final:
                self.made.append((slot, shape))
        for shape, axes in residuals or saved_shapes(signature, geometry):
            slot = plan.make(shape if training else None, axes)
            if axes == "nh":  # checkpoints: the slot takes the place of batch and token alike
                plan.values[slot + 2] = plan.values[slot + 1] if training else 0
            if training:
                if axes == "nh":
                    self.sparse.append(len(self.made))
                self.made.append((slot, shape))
        plan.integers(flat)
        plan.finish()
        self.array, self.template = plan.array, plan.template
        self.given, self.conversions = plan.given, plan.conversions
        self.dtype, self.device = dtype, geometry.device
        self.narrow = None if geometry.output_dtype == dtype else geometry.output_dtype

    def __call__(self, flat: Tensors, clean: bool = False) -> Result:
        """y, final states, residuals."""
        dtype, device = self.dtype, self.device
        tensors: Any = flat
        if self.conversions:
            tensors = list(flat)
            for index, convert in self.conversions:
                tensors[index] = convert(tensors[index])
        arguments = self.array.from_buffer_copy(self.template)
        for slot, index in self.given:
            arguments[slot] = tensors[index].data_ptr()
        y = empty(self.y_shape, dtype, device)
        arguments[self.y_slot] = y.data_ptr()
        made = []
        for slot, shape in self.made:
            tensor = empty(shape, dtype, device)
            arguments[slot] = tensor.data_ptr()
            made.append(tensor)
        if clean:
            for place in self.sparse:
                made[place].zero_()
        _run(self.function, arguments)
        if self.narrow is not None:
            y = y.to(self.narrow)
        return y, made[: self.finals], made[self.finals :]


class Backward:
    """A backward call, prepared; its tensors are those of the call, then residuals, then seeds."""

    def __init__(
        self,
        function: Any,
        signature: Signature,
        layout: Layout,
        geometry: Geometry,
        tensors: Tensors,
        wanted: Sequence[bool],
    ) -> None:
        self.function, dtype = function, geometry.dtype
        plan = _Plan(signature, geometry)
        flat = tensors[: layout.length]
        _take_call(plan, layout, flat, dtype)
        index = layout.length
        for _, axes in saved_shapes(signature, geometry):
            slot = len(plan.values)
            plan.take(index, tensors[index], axes, dtype)
            if axes == "nh":
                plan.values[slot + 2] = plan.values[slot + 1]
            index += 1
        plan.take(index, tensors[index], "nth", dtype)
        for offset in range(len(signature.states)):
            plan.take(index + 1 + offset, tensors[index + 1 + offset], "nh", dtype)
        self.count = self._results(plan, signature, wanted)
        plan.integers(flat)
        plan.finish()
        self.array, self.template = plan.array, plan.template
        self.given, self.conversions = plan.given, plan.conversions
        self.dtype, self.device = dtype, geometry.device

    def _results(self, plan: _Plan, signature: Signature, wanted: Sequence[bool]) -> int:
        """Append the entries of the gradients, those that are not wanted absent; their number."""
        geometry, inputs, params = plan.geometry, len(signature.inputs), len(signature.params)
        lead = (geometry.batch, geometry.tokens, geometry.heads)
        per_sequence = (geometry.sequences, geometry.heads)
        specs: list[TensorSpec | StateSpec]
        specs = [*signature.inputs, *signature.params, *signature.states]
        self.made: list[tuple[int, int, tuple[int, ...]]] = []
        for place, (spec, want) in enumerate(zip(specs, wanted, strict=True)):
            token = place < inputs
            shape = (*(lead if token else per_sequence), *geometry.shape(spec.dims))
            slot = plan.make(shape if want else None, "nth" if token else "nh")
            if want:
                self.made.append((slot, place, shape))
        self.params = range(inputs, inputs + params)
        return len(specs)

    def __call__(self, tensors: Tensors) -> list[torch.Tensor | None]:
        """Gradients at full heads in the dtype of computation; params [H, *dims]."""
        dtype, device = self.dtype, self.device
        found: Any = tensors
        if self.conversions:
            found = list(tensors)
            for index, convert in self.conversions:
                found[index] = convert(found[index])
        arguments = self.array.from_buffer_copy(self.template)
        for slot, index in self.given:
            arguments[slot] = found[index].data_ptr()
        gradients: list[torch.Tensor | None] = [None] * self.count
        for slot, place, shape in self.made:
            tensor = empty(shape, dtype, device)
            arguments[slot] = tensor.data_ptr()
            gradients[place] = tensor
        _run(self.function, arguments)
        for place in self.params:
            parts = gradients[place]
            if parts is not None:
                gradients[place] = sum_in_order(parts, 0)
        return gradients


def _take_call(plan: _Plan, layout: Layout, flat: Tensors, dtype: torch.dtype) -> None:
    """Append inputs, params, buffers and states; a learned start stands in for its state."""
    for index in range(layout.inputs.start, layout.inputs.stop):
        plan.take(index, flat[index], "nth", dtype)
    for group in (layout.params, layout.buffers):
        for index in range(group.start, group.stop):
            plan.take(index, flat[index], "h", dtype)
    for index, start in layout.carried:
        if flat[index] is None and start is not None:
            plan.take(start, flat[start], "h", dtype)
        else:
            plan.take(index, flat[index], "nh", dtype)


REGULAR = range(16, 257, 16)
"""Sizes that kernels are specialised to; others (odd, tiny, huge) are left open."""


PARTS = ("FWGEN_NO_BACKWARD", "FWGEN_NO_FORWARD")
"""Macros that leave a kernel out; sources of packages made earlier have none."""


def defines(signature: Signature, geometry: Geometry) -> tuple[str, ...]:
    """The macros that the library for such a call is compiled with; they depend on sizes only.

    `FWGEN_SIZE_<i>` fixes the i-th free dim. float64 serves checks, for which one library will do.
    """
    if geometry.dtype == torch.float64:
        return ("FWGEN_REAL=double",)
    sizes = [geometry.sizes[name] for name in signature.free_dims]
    fixed = [f"FWGEN_SIZE_{i}={size}" for i, size in enumerate(sizes) if size in REGULAR]
    return ("FWGEN_REAL=float", *fixed)


class CpuBackend:
    """The kernels of one rule: compiled on first use, and once more per set of regular sizes."""

    def __init__(self, signature: Signature, source: str) -> None:
        self.signature, self.source = signature, source
        self.layout = Layout.of(signature)
        self._libraries: dict[tuple[str, ...], ctypes.CDLL] = {}

    def library(self, geometry: Geometry) -> ctypes.CDLL:
        """The library for a dtype of computation and sizes."""
        macros = defines(self.signature, geometry)
        found = self._libraries.get(macros)
        if found is None:
            parts = [macro for macro in PARTS if macro in self.source]
            found = load(self.signature.name, self.source, macros, parts)
            self._libraries[macros] = found
        return found

    def forward(
        self,
        geometry: Geometry,
        flat: Tensors,
        training: bool,
        want_final: bool,
        residuals: Residuals | None = None,
    ) -> Forward:
        """A forward call prepared for tensors that look like these."""
        function, layout = self.library(geometry).fwgen_forward, self.layout
        asked = (training, want_final, residuals)
        return Forward(function, self.signature, layout, geometry, flat, *asked)

    def backward(self, geometry: Geometry, tensors: Tensors, wanted: Sequence[bool]) -> Backward:
        """A backward call prepared; `tensors`: the call, residuals, grad_y, grad_finals."""
        function = self.library(geometry).fwgen_backward
        return Backward(function, self.signature, self.layout, geometry, tensors, wanted)
