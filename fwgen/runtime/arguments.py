"""Checks of a call: every tensor against the signature, before anything runs.

A call is a flat list of tensors in the order of `Layout`. Checks look at shapes, dtypes and devices
only, so that they also serve fake tensors; the values of `cu_seqlens` and `position` are looked at
separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import ArgumentError
from .binding import CARRIED
from .geometry import Geometry, Layout
from .signature import Poly, Signature, TensorSpec
from .sizes import Axis, bind, evaluate, text

HALVES = (torch.bfloat16, torch.float16)
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
CHUNK_SIZES = (16, 32, 64, 128)
FORMS = ("auto", "recurrent", "chunk")
PLAIN = (torch.Tensor, torch.nn.Parameter)
BACKENDS = ("auto", "cpu", "triton", "reference")


def check_options(form: object, backend: object, chunk_size: object, final: object) -> None:
    """Raise ArgumentError for a value that no rule could serve."""
    if not isinstance(final, bool):
        raise ArgumentError(f"output_final_state: expected True or False, found {final!r}")
    if form not in FORMS:
        raise ArgumentError(f"form: expected one of {', '.join(FORMS)}, found {form!r}")
    if backend not in BACKENDS:
        raise ArgumentError(f"backend: expected one of {', '.join(BACKENDS)}, found {backend!r}")
    whole = isinstance(chunk_size, int) and not isinstance(chunk_size, bool)
    if chunk_size is not None and not (whole and chunk_size in CHUNK_SIZES):
        sizes = ", ".join(map(str, CHUNK_SIZES))
        raise ArgumentError(f"chunk_size: expected one of {sizes}, found {chunk_size!r}")


def _describe(shape: Sequence[object]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _tensor(name: str, value: Any, lead: Sequence[str], dims: Sequence[Poly]) -> torch.Tensor:
    """`value`, if it is a dense tensor with that many axes."""
    expected = _describe([*lead, *map(text, dims)])
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(f"{name}: expected a tensor {expected}, found {type(value).__name__}")
    if value.layout != torch.strided:
        raise ArgumentError(f"{name}: expected a dense tensor, found layout {value.layout}")
    if value.dim() != len(lead) + len(dims):
        raise ArgumentError(f"{name}: expected shape {expected}, found {_describe(value.shape)}")
    return value


class _Checker:
    """One walk over the tensors of a call; the first fault raises."""

    def __init__(self, signature: Signature, layout: Layout, flat: Sequence[Any], step: bool):
        self.signature, self.layout, self.flat = signature, layout, flat
        self.step, self.carried = step, CARRIED[step]
        self.axes: list[Axis] = []

    def geometry(self) -> Geometry:
        inputs = self._inputs()
        cu_seqlens, position = self.flat[-2:]
        self.sequences = self.batch if cu_seqlens is None else self._packing(cu_seqlens)
        heads = self._per_head(("params", self.layout.params, self.signature.params))
        heads += self._per_head(("params", self.layout.starts, self.signature.starts))
        heads += self._per_head(("buffers", self.layout.buffers, self.signature.buffers))
        states = self._states()
        sizes, origin = bind(self.axes, self.signature.free_dims, self.carried)
        self._sizes(sizes, origin)
        dtype = self._dtypes(inputs, heads, states)
        self._position(position)
        self._devices(inputs[0][1].device)
        first = inputs[0][1].dtype
        return Geometry(
            batch=self.batch,
            tokens=self.tokens,
            heads=self.heads,
            sequences=self.sequences,
            sizes=sizes,
            dtype=dtype,
            output_dtype=first if first.is_floating_point else dtype,
            device=inputs[0][1].device,
        )

    def _shown(self, shape: Sequence[int]) -> str:
        """A shape as the user passed it: a step has no token axis."""
        return _describe([*shape[:1], *shape[2:]] if self.step else shape)

    def _inputs(self) -> list[tuple[TensorSpec, torch.Tensor]]:
        lead = ("B", "H") if self.step else ("B", "T", "H")
        found = []
        for spec, value in zip(self.signature.inputs, self.flat[self.layout.inputs], strict=True):
            if self.step and isinstance(value, torch.Tensor) and value.dim() > 1:
                _tensor(spec.name, value[:, 0], lead, spec.dims)
            else:
                _tensor(spec.name, value, lead, spec.dims)
            found.append((spec, value))
        name, first = found[0][0].name, found[0][1]
        self.batch, self.tokens = first.shape[0], first.shape[1]
        self.heads = max(value.shape[2] for _, value in found)
        if self.heads == 0:
            shown = self._shown(first.shape)
            raise ArgumentError(f"{name}: expected one or more heads, found {shown}")
        for spec, value in found:
            shape = value.shape
            if shape[0] != self.batch or shape[1] != self.tokens:
                want = f"B = {self.batch}" + ("" if self.step else f", T = {self.tokens}")
                raise ArgumentError(
                    f"{spec.name}: expected {want} as in {name}, found {self._shown(shape)}"
                )
            if shape[2] == 0 or self.heads % shape[2] != 0:
                raise ArgumentError(
                    f"{spec.name}: expected a number of heads that divides {self.heads}, "
                    f"found {shape[2]}"
                )
            self._axes(spec.name, spec.dims, shape[3:])
        return found

    def _axes(self, name: str, dims: Sequence[Poly], sizes: Sequence[int]) -> None:
        self.axes += [Axis(name, dim, size) for dim, size in zip(dims, sizes, strict=True)]

    def _packing(self, cu_seqlens: Any) -> int:
        """The number of sequences that are packed into the one row."""
        kinds = (torch.int32, torch.int64)
        if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.dtype not in kinds:
            found = getattr(cu_seqlens, "dtype", type(cu_seqlens).__name__)
            raise ArgumentError(f"cu_seqlens: expected an int32 or int64 tensor, found {found}")
        if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1:
            found = _describe(cu_seqlens.shape)
            raise ArgumentError(f"cu_seqlens: expected shape [N + 1], found {found}")
        if self.batch != 1:
            raise ArgumentError(f"cu_seqlens: expected inputs with B = 1, found B = {self.batch}")
        return cu_seqlens.shape[0] - 1

    def _per_head(
        self, group: tuple[str, slice, Sequence[TensorSpec]]
    ) -> list[tuple[str, torch.Tensor]]:
        kind, where, specs = group
        found = []
        for spec, value in zip(specs, self.flat[where], strict=True):
            label = f"{kind}[{spec.name!r}]"
            _tensor(label, value, ("H",), spec.dims)
            if value.shape[0] != self.heads:
                raise ArgumentError(f"{label}: expected {self.heads} heads, found {value.shape[0]}")
            self._axes(label, spec.dims, value.shape[1:])
            found.append((label, value))
        return found

    def _states(self) -> list[tuple[str, torch.Tensor]]:
        found = []
        for spec, value in zip(self.signature.states, self.flat[self.layout.states], strict=True):
            if value is None:
                continue
            label = f"{self.carried}[{spec.name!r}]"
            _tensor(label, value, ("B" if self.step else "N", "H"), spec.dims)
            if value.shape[0] != self.sequences or value.shape[1] != self.heads:
                raise ArgumentError(
                    f"{label}: expected {self.sequences} sequences and {self.heads} heads, "
                    f"found {_describe(value.shape)}"
                )
            self._axes(label, spec.dims, value.shape[2:])
            found.append((label, value))
        return found

    def _sizes(self, sizes: dict[str, int], origin: dict[str, str]) -> None:
        for axis in self.axes:
            want = evaluate(axis.dim, sizes)
            if axis.size != want or want < 1:
                names = dict.fromkeys(name for names, _ in axis.dim for name in names)
                why = ", ".join(f"{name} = {sizes[name]} from {origin[name]}" for name in names)
                value = f"{text(axis.dim)} = {want}" if names else str(want)
                why = f" ({why})" if why else ""
                raise ArgumentError(f"{axis.tensor}: expected {value}{why}, found {axis.size}")
        for size in self.signature.room:
            if evaluate(size, sizes) < 0:
                name = next(name for names, _ in size for name in names)
                raise ArgumentError(
                    f"{origin[name]}: too small for the rule, whose slices and positions need "
                    f"{text(size)} >= 0, found {name} = {sizes[name]}"
                )

    def _dtypes(
        self,
        inputs: Sequence[tuple[TensorSpec, torch.Tensor]],
        heads: Sequence[tuple[str, torch.Tensor]],
        states: Sequence[tuple[str, torch.Tensor]],
    ) -> torch.dtype:
        """The dtype of computation: float64 when all are, else float32."""
        mixed = []
        for spec, value in inputs:
            if spec.floating or value.dtype not in WHOLE:
                mixed.append((spec.name, value.dtype))
        mixed += [(label, value.dtype) for label, value in heads]
        half: tuple[str, torch.dtype] | None = None
        first: tuple[str, torch.dtype] | None = None
        for label, dtype in mixed:
            if dtype not in (torch.float32, torch.float64, *HALVES):
                raise ArgumentError(
                    f"{label}: expected float64, float32, bfloat16 or float16, found {dtype}"
                )
            first = first or (label, dtype)
            if (dtype == torch.float64) != (first[1] == torch.float64):
                raise ArgumentError(
                    f"{label}: float64 does not mix with other dtypes, expected one that goes "
                    f"with {first[1]} of {first[0]}, found {dtype}"
                )
            if dtype in HALVES:
                half = half or (label, dtype)
                if dtype != half[1]:
                    raise ArgumentError(
                        f"{label}: expected {half[1]} as in {half[0]} or float32, found {dtype}"
                    )
        wide = first is not None and first[1] == torch.float64
        compute = torch.float64 if wide else torch.float32
        for label, value in states:
            if value.dtype != compute:
                raise ArgumentError(f"{label}: expected dtype {compute}, found {value.dtype}")
        return compute

    def _position(self, position: Any) -> None:
        if position is None:
            given = any(value is not None for value in self.flat[self.layout.states])
            if given and self.signature.uses_position:
                raise ArgumentError(
                    "position: the rule uses t, expected the index of each sequence's first token "
                    f"beside {self.carried}, found None"
                )
            return
        if not isinstance(position, torch.Tensor) or position.dtype != torch.int64:
            found = getattr(position, "dtype", type(position).__name__)
            raise ArgumentError(f"position: expected an int or an int64 tensor, found {found}")
        if position.dim() != 1 or position.shape[0] != self.sequences:
            found = _describe(position.shape)
            raise ArgumentError(f"position: expected shape [{self.sequences}], found {found}")

    def _devices(self, device: torch.device) -> None:
        names = [spec.name for spec in self.signature.inputs]
        names += [f"params[{spec.name!r}]" for spec in self.signature.params]
        names += [f"params[{spec.name!r}]" for spec in self.signature.starts]
        names += [f"buffers[{spec.name!r}]" for spec in self.signature.buffers]
        names += [f"{self.carried}[{spec.name!r}]" for spec in self.signature.states]
        names += ["cu_seqlens", "position"]
        for name, value in zip(names, self.flat, strict=True):
            if value is not None and value.device != device:
                raise ArgumentError(
                    f"{name}: expected device {device} as in {names[0]}, found {value.device}"
                )


def check(signature: Signature, flat: Sequence[Any], *, step: bool = False) -> Geometry:
    """Check the tensors of a call and bind all sizes; raises ArgumentError for the first fault.

    With `step` the token axis was added by us, and messages leave it out.
    """
    return _Checker(signature, Layout.of(signature), flat, step).geometry()


def _check_packing(cu_seqlens: torch.Tensor, tokens: int) -> None:
    """Boundaries run from 0 to `tokens` without falling."""
    first, last = int(cu_seqlens[0]), int(cu_seqlens[-1])
    if first != 0 or last != tokens:
        raise ArgumentError(
            f"cu_seqlens: expected boundaries from 0 to T = {tokens}, found {first} to {last}"
        )
    if bool((cu_seqlens[1:] < cu_seqlens[:-1]).any()):
        raise ArgumentError("cu_seqlens: expected boundaries that do not fall, found some that do")


def _at_hand(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and type(tensor) in PLAIN


def check_values(cu_seqlens: torch.Tensor | None, position: torch.Tensor | None, T: int) -> None:
    """What `check` leaves open: boundaries and positions, where their values can be read."""
    if cu_seqlens is not None and _at_hand(cu_seqlens):
        _check_packing(cu_seqlens, T)
    if position is not None and _at_hand(position) and bool((position < 0).any()):
        raise ArgumentError(
            f"position: expected token indices of at least 0, found {int(position.min())}"
        )
