"""The operators of a rule inside PyTorch: `fwgen::<name>_<hash8>_forward` and `_backward`.

They serve what traces or intercepts a call (torch.compile, fake tensors, dispatch modes,
torch.func); the schema is flat, one tensor per argument, and no result aliases an argument.
Absent results (final states or gradients that nobody wants) are tensors of shape [0].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .arguments import check
from .forks import Lock
from .geometry import Tensors, saved_shapes
from .kernels import Kernels, Options
from .signature import Signature

_LIBRARY: Any = torch.library.Library("fwgen", "FRAGMENT")  # type: ignore[no-untyped-call]
_REGISTERED: dict[Signature, Operators] = {}
_registering = Lock()

DOUBLE_BACKWARD = (
    "fwgen: the backward pass of a rule cannot be differentiated again; "
    "op.reference(...) supports second derivatives"
)


def operators(kernels: Kernels) -> Operators:
    """The operators of a rule, registered at the first call for its signature.

    Later ones share them, and add the sources that the first one was generated without.
    """
    with _registering:
        found = _REGISTERED.get(kernels.signature)
        if found is None:
            found = _REGISTERED[kernels.signature] = Operators(kernels)
        else:
            found.kernels.sources = {**kernels.sources, **found.kernels.sources}
    return found


def _arguments(signature: Signature) -> list[str]:
    """The tensors of a call as arguments of a schema; prefixes keep them off reserved words."""
    names = [f"Tensor in_{spec.name}" for spec in signature.inputs]
    names += [f"Tensor param_{spec.name}" for spec in signature.params]
    names += [f"Tensor start_{spec.name}" for spec in signature.starts]
    names += [f"Tensor buffer_{spec.name}" for spec in signature.buffers]
    names += [f"Tensor? state_{spec.name}" for spec in signature.states]
    return [*names, "Tensor? cu_seqlens", "Tensor? position"]


def _results(count: int) -> str:
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"


def _pack(tensors: Sequence[torch.Tensor]) -> Any:
    """Results as the schema wants them."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


class Operators:
    """The registered pair of one rule; `kernels` runs it."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.signature = signature = kernels.signature
        stem, taken = f"{signature.name}_{signature.hash[:8]}", 0
        while hasattr(torch.ops.fwgen, f"{stem}_forward"):  # by another copy of this module
            taken += 1
            stem = f"{signature.name}_{signature.hash[:8]}_copy{taken}"
        self.states, self.saved = len(signature.states), len(signature.saved)
        self.gradients = (
            len(signature.inputs) + len(signature.params) + len(signature.starts) + self.states
        )
        self.tensors = self.gradients + len(signature.buffers) + 2
        self._define(f"{stem}_forward", self._forward_schema(), self._forward, self._fake_forward)
        self._define(
            f"{stem}_backward", self._backward_schema(), self._backward, self._fake_backward
        )
        torch.library.register_autograd(
            f"fwgen::{stem}_forward", self._derive, setup_context=self._keep, lib=_LIBRARY
        )
        torch.library.register_autograd(
            f"fwgen::{stem}_backward", _refuse, setup_context=_keep_nothing, lib=_LIBRARY
        )
        self.forward: Callable[..., Any] = getattr(torch.ops.fwgen, f"{stem}_forward").default
        self.backward: Callable[..., Any] = getattr(torch.ops.fwgen, f"{stem}_backward").default

    def _define(
        self, name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]
    ) -> None:
        _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            _LIBRARY.impl(name, run, key)
        torch.library.register_fake(f"fwgen::{name}", fake, lib=_LIBRARY)

    def _forward_schema(self) -> str:
        arguments = _arguments(self.signature)
        arguments += ["str form", "str backend", "int? chunk_size", "bool training", "bool final"]
        return f"({', '.join(arguments)}) -> {_results(1 + self.states + self.saved)}"

    def _backward_schema(self) -> str:
        arguments = ["Tensor? grad_output"]  # a state may be called as the output is
        arguments += [f"Tensor? grad_final_{spec.name}" for spec in self.signature.states]
        arguments += _arguments(self.signature)
        arguments += [f"Tensor saved_{i}" for i in range(self.saved)]
        arguments += ["bool[] wanted", "str form", "str backend", "int? chunk_size"]
        return f"({', '.join(arguments)}) -> {_results(self.gradients)}"

    def _split(self, arguments: Sequence[Any]) -> tuple[Any, list[Any], list[Any], tuple[Any, ...]]:
        """Backward's arguments: grad_y, grads of final states, tensors and residuals, the rest."""
        start = 1 + self.states
        end = start + self.tensors
        flat, saved = list(arguments[start:end]), list(arguments[end : end + self.saved])
        grads = list(arguments[:start])
        return grads, flat, saved, tuple(arguments[end + self.saved :])

    def _forward(self, *arguments: Any) -> Any:
        flat = arguments[: self.tensors]
        form, backend, chunk_size, training, want_final = arguments[self.tensors :]
        options = Options(form, backend, chunk_size)
        y, finals, saved = self.kernels.forward(flat, options, training, want_final)
        finals = finals if want_final else [y.new_empty(0) for _ in range(self.states)]
        saved = saved if training else [y.new_empty(0) for _ in range(self.saved)]
        return _pack([y, *finals, *saved])

    def _fake_forward(self, *arguments: Any) -> Any:
        flat = arguments[: self.tensors]
        form, backend, chunk_size, training, want_final = arguments[self.tensors :]
        geometry = check(self.signature, flat)
        backend = self.kernels.plan(geometry, Options(form, backend, chunk_size)).backend
        like = flat[0]
        lead = (geometry.batch, geometry.tokens, geometry.heads)
        shape = (*lead, *geometry.shape(self.signature.output.dims))
        y = like.new_empty(shape, dtype=geometry.output_dtype)
        finals, saved = [], []
        for spec in self.signature.states:
            shape = (geometry.sequences, geometry.heads, *geometry.shape(spec.dims))
            finals.append(like.new_empty(shape, dtype=geometry.dtype))
        for shape, _ in saved_shapes(self.signature, geometry, backend):
            saved.append(like.new_empty(shape, dtype=geometry.dtype))
        finals = finals if want_final else [y.new_empty(0) for _ in finals]
        saved = saved if training else [y.new_empty(0) for _ in saved]
        return _pack([y, *finals, *saved])

    def _given(self, flat: Tensors) -> list[torch.Tensor | None]:
        """The tensors that may have gradients, in order."""
        layout = self.kernels.layout
        return [*flat[: layout.buffers.start], *flat[layout.states]]

    def _backward(self, *arguments: Any) -> Any:
        grads, flat, saved, (wanted, *options) = self._split(arguments)
        found = self.kernels.backward(flat, saved, grads[0], grads[1:], wanted, Options(*options))
        return _pack([flat[0].new_empty(0) if gradient is None else gradient for gradient in found])

    def _fake_backward(self, *arguments: Any) -> Any:
        _, flat, _, (wanted, *_) = self._split(arguments)
        found = []
        for tensor, want in zip(self._given(flat), wanted, strict=True):
            if tensor is None or not want:
                found.append(flat[0].new_empty(0))
            else:
                found.append(tensor.new_empty(tensor.shape))
        return _pack(found)

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *_, training, want_final = inputs
        results = [output] if isinstance(output, torch.Tensor) else list(output)
        ctx.set_materialize_grads(False)
        ctx.options = inputs[self.tensors : self.tensors + 3]
        ctx.final, ctx.training = want_final, training
        kept = results[1 + self.states :]
        ctx.mark_non_differentiable(*kept, *([] if want_final else results[1 : 1 + self.states]))
        ctx.save_for_backward(*inputs[: self.tensors], *kept)

    def _derive(self, ctx: Any, *grads: Any) -> Any:
        if not ctx.training:
            raise RuntimeError("fwgen: a gradient was asked of a call with training=False")
        kept, options = ctx.saved_tensors, ctx.options
        flat, saved = kept[: self.tensors], kept[self.tensors :]
        finals = grads[1 : 1 + self.states] if ctx.final else (None,) * self.states
        layout = self.kernels.layout
        needs = ctx.needs_input_grad
        wanted = [*needs[: layout.buffers.start], *needs[layout.states]]
        found = self.backward(grads[0], *finals, *flat, *saved, wanted, *options)
        found = [found] if isinstance(found, torch.Tensor) else found
        found = [g if want else None for g, want in zip(found, wanted, strict=True)]
        cut = layout.buffers.start
        buffers = [None] * (layout.buffers.stop - cut)
        return (*found[:cut], *buffers, *found[cut:], *[None] * 7)


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """The backward operator is not differentiated, so nothing is kept."""


def _refuse(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError(DOUBLE_BACKWARD)
