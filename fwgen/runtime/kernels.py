"""Which kernels serve a call, and what surrounds them: empty calls, grouped heads, dtypes.

A call is a flat list of tensors (`Layout`); what depends only on how its tensors look is prepared
once and kept under a key of shapes, strides, dtypes and options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import UnsupportedError
from . import value_blocks
from .arguments import check, check_values
from .cpu_backend import CpuBackend
from .geometry import Geometry, Layout, Tensors, groups, sum_in_order
from .prepared import OnLists, Prepared, Result, WithoutTokens, look
from .signature import Signature

Gradients = list[torch.Tensor | None]
KEPT = 1024  # prepared calls per rule; models use few shapes, and tests many


class Options(NamedTuple):
    """What the caller asks for, as passed."""

    form: str
    backend: str
    chunk_size: int | None


class Plan(NamedTuple):
    """What runs, and why, in one sentence."""

    backend: str
    form: str
    chunk_size: int | None
    why: str


NO_CHUNK = "no kernels of the chunk form are generated yet"


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.clone(memory_format=torch.contiguous_format)


class Kernels:
    """The kernels of one rule on the backends that it was generated for; built when first used."""

    def __init__(self, signature: Signature, sources: Mapping[str, str]) -> None:
        self.signature, self.sources = signature, dict(sources)
        self.layout = Layout.of(signature)
        self._backends: dict[str, Any] = {}
        self._forward: dict[object, Prepared] = {}
        self._backward: dict[object, tuple[Geometry, Callable[[Tensors], Gradients]]] = {}

    def plan(self, geometry: Geometry, options: Options) -> Plan:
        """What serves such a call; UnsupportedError where nothing does."""
        form, backend, chunk_size = options
        device, forms = geometry.device.type, self.signature.forms
        if form == "chunk" and "chunk" not in forms:
            why = self.signature.chunk_reason or NO_CHUNK
            raise UnsupportedError(
                f'the chunk form cannot serve `{self.signature.name}`: {why}; form="recurrent" does'
            )
        form = "recurrent" if form == "auto" else form
        if backend == "auto":
            backend = "cpu" if device == "cpu" else "triton"
        if backend == "cpu" and device != "cpu":
            raise UnsupportedError(
                f'backend="cpu" serves CPU tensors, found {device} tensors; backend="triton" does'
            )
        if backend == "triton":
            self._triton_serves(geometry)
        why = self._why(options, backend, device)
        return Plan(backend, form, (chunk_size or 64) if form == "chunk" else None, why)

    def _why(self, options: Options, backend: str, device: str) -> str:
        """Where the choice of backend and form comes from."""
        found = f'backend="{backend}" was asked for'
        if options.backend == "auto":
            found = f'backend="auto" is {backend} for {device} tensors'
        if "chunk" not in self.signature.forms:
            reason = self.signature.chunk_reason or NO_CHUNK
            return f"{found}; the form is recurrent, since {reason}"
        if options.form == "auto":
            return f'{found}; form="auto" is recurrent'
        return f'{found}; form="{options.form}" was asked for'

    def _triton_serves(self, geometry: Geometry) -> None:
        device = geometry.device.type
        if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise UnsupportedError(
                f'backend="triton" serves GPU tensors, found {device} tensors; backend="cpu" '
                "serves CPU tensors (TRITON_INTERPRET=1 runs Triton on them, slowly, for tests)"
            )
        if geometry.dtype == torch.float64:
            raise UnsupportedError(
                'the Triton kernels compute in float32 and take no float64; backend="cpu" or '
                '"reference" does'
            )

    def backend(self, name: str) -> Any:
        """The backend of that name; UnsupportedError if it was not generated."""
        found = self._backends.get(name)
        if found is None:
            found = self._backends[name] = self._make(name)
        return found

    def _make(self, name: str) -> Any:
        if name == "cpu" and "cpu.cpp" in self.sources:
            return CpuBackend(self.signature, self.sources["cpu.cpp"])
        triton = {f: s for f, s in self.sources.items() if f.startswith("triton_")}
        if name == "triton" and triton:
            try:
                from .triton_backend import TritonBackend
            except ModuleNotFoundError as error:
                raise UnsupportedError(f"Triton is not installed ({error})") from None
            return TritonBackend(self.signature, triton)
        raise UnsupportedError(
            f"`{self.signature.name}` was compiled without the {name} target; "
            f"compile it with --target {name}"
        )

    def prepare(
        self,
        flat: Tensors,
        options: Options,
        training: bool,
        want_final: bool,
        *,
        step: bool = False,
    ) -> Prepared:
        """The call for tensors that look like these; checks them when it meets them first."""
        try:
            key = (options, training, want_final, step, look(flat))
            found = self._forward.get(key)
        except (AttributeError, RuntimeError, TypeError):
            check(self.signature, flat, step=step)
            raise
        if found is None:
            found = self._prepare(flat, options, training, want_final, step)
            if len(self._forward) >= KEPT:
                self._forward.clear()
            self._forward[key] = found
        return found

    def _prepare(
        self, flat: Tensors, options: Options, training: bool, want_final: bool, step: bool
    ) -> Prepared:
        geometry = check(self.signature, flat, step=step)
        plan = self.plan(geometry, options)
        backend = self.backend(plan.backend)
        if geometry.tokens == 0 or geometry.sequences == 0:
            asked = (training, want_final, plan.backend)
            return WithoutTokens(self.signature, self.layout, geometry, *asked)
        if plan.backend == "cpu":
            return value_blocks.forward(backend, geometry, flat, training, want_final)
        return OnLists(backend, self.layout, geometry, training, want_final)

    def forward(self, flat: Tensors, options: Options, training: bool, want_final: bool) -> Result:
        """Run a call for an operator: output, final states (or none), residuals (or none)."""
        prepared = self.prepare(flat, options, training, want_final)
        check_values(flat[-2], flat[-1], prepared.geometry.tokens)
        return prepared(flat, clean=True)

    def backward(
        self,
        flat: Tensors,
        saved: Tensors,
        grad_y: torch.Tensor | None,
        grad_finals: Tensors,
        wanted: Sequence[bool],
        options: Options,
    ) -> Gradients:
        """Gradients of inputs, params, learned starts and states; None where not wanted."""
        tensors = (*flat, *saved, grad_y, *grad_finals)
        key = (options, tuple(wanted), look(tensors))
        found = self._backward.get(key)
        if found is None:
            found = self._prepare_backward(tensors, wanted, options)
            if len(self._backward) >= KEPT:
                self._backward.clear()
            self._backward[key] = found
        geometry, run = found
        check_values(flat[-2], flat[-1], geometry.tokens)  # they may have been written to since
        return self._finish(geometry, flat, run(tensors), grad_finals, wanted)

    def _kernel_wants(self, flat: Tensors, wanted: Sequence[bool]) -> list[bool]:
        """`wanted` for inputs, params and states, a learned start counting as its state."""
        layout, signature = self.layout, self.signature
        specs = (*signature.inputs, *signature.params)
        kernel = [
            bool(want) and spec.floating and spec.name not in signature.constant
            for spec, want in zip(specs, wanted, strict=False)
        ]
        buffers = layout.buffers.stop - layout.buffers.start  # `wanted` has none
        for spec, (index, start) in zip(signature.states, layout.carried, strict=True):
            want = wanted[index - buffers]
            if flat[index] is None:
                want = start is not None and wanted[start]
            kernel.append(bool(want) and spec.name not in signature.constant)
        return kernel

    def _prepare_backward(
        self, tensors: Tensors, wanted: Sequence[bool], options: Options
    ) -> tuple[Geometry, Callable[[Tensors], Gradients]]:
        layout, signature = self.layout, self.signature
        flat = tensors[: layout.length]
        geometry = check(signature, flat)
        plan = self.plan(geometry, options)
        wants = self._kernel_wants(flat, wanted)
        states = len(signature.states)
        if geometry.tokens == 0 or geometry.sequences == 0:
            blank: Gradients = [None] * (len(wants) - states)
            return geometry, lambda t: [*blank, *map(_copy, t[len(t) - states :])]
        if not any(wants):
            return geometry, lambda t: [None] * len(wants)
        backend = self.backend(plan.backend)
        end = layout.length + len(signature.saved)
        if plan.backend == "cpu":
            return geometry, value_blocks.backward(backend, geometry, tensors, wants)

        def run(t: Tensors) -> Gradients:
            found: Gradients = backend.backward(
                *groups(layout, geometry, t[: layout.length]),
                list(t[layout.length : end]),
                t[end],
                list(t[end + 1 :]),
                wants,
            )
            return found

        return geometry, run

    def _finish(
        self,
        geometry: Geometry,
        flat: Tensors,
        found: Gradients,
        grad_finals: Tensors,
        wanted: Sequence[bool],
    ) -> Gradients:
        """Gradients as the tensors of the call have them: grouped heads, dtypes, zeros."""
        layout = self.layout
        gradients: Gradients = []
        for place in range(layout.starts.start):
            tensor = flat[place]
            if not wanted[place] or tensor is None:
                gradients.append(None)
            else:
                token = place < layout.params.start
                gradients.append(_like(tensor, found[place], geometry.heads if token else None))
        carried = [
            _through_empty(flat[-2], *pair)
            for pair in zip(found[layout.starts.start :], grad_finals, strict=True)
        ]
        for (index, start), gradient in zip(layout.carried, carried, strict=True):
            if start is None:
                continue
            learned = flat[start]
            assert learned is not None
            if not wanted[start]:
                gradients.append(None)
            elif gradient is None or flat[index] is not None or not geometry.sequences:
                gradients.append(learned.new_zeros(learned.shape))
            else:
                gradients.append(sum_in_order(gradient, 0).to(learned.dtype))
        buffers = layout.buffers.stop - layout.buffers.start
        for (index, _), gradient in zip(layout.carried, carried, strict=True):
            state = flat[index]
            if state is None or not wanted[index - buffers]:
                gradients.append(None)
            elif gradient is None:
                gradients.append(torch.zeros(state.shape, dtype=state.dtype, device=state.device))
            else:
                gradients.append(gradient)
        return gradients


def _like(tensor: torch.Tensor, gradient: torch.Tensor | None, heads: int | None) -> torch.Tensor:
    """A gradient in the dtype of its tensor; of an input, which may have fewer than `heads`."""
    if gradient is None:
        return tensor.new_zeros(tensor.shape)
    if heads is not None and tensor.shape[2] != heads:
        group = (tensor.shape[2], heads // tensor.shape[2])
        grouped = gradient.view(*gradient.shape[:2], *group, *gradient.shape[3:])
        gradient = sum_in_order(grouped, 3)
    return gradient if gradient.dtype == tensor.dtype else gradient.to(tensor.dtype)


def _through_empty(
    boundaries: torch.Tensor | None, gradient: torch.Tensor | None, grad_final: torch.Tensor | None
) -> torch.Tensor | None:
    """The gradient of a start that no token's results depend on, for which no kernel was asked.

    An empty sequence hands its start on as its final state, and so the gradient back.
    """
    if gradient is not None or boundaries is None or grad_final is None:
        return gradient
    empty = (boundaries.diff() == 0).to(grad_final.device)
    return torch.where(empty.view(-1, *[1] * (grad_final.ndim - 1)), grad_final, 0)
