"""Gradients of plain eager calls: the kernels as a function of autograd."""

from __future__ import annotations

from typing import Any

import torch

from .kernels import Kernels, Options
from .prepared import Prepared
from .torch_ops import DOUBLE_BACKWARD


class _Differentiable(torch.autograd.Function):
    """A plain eager call with gradients."""

    @staticmethod
    def forward(
        ctx: Any, kernels: Kernels, prepared: Prepared, options: Options, *flat: Any
    ) -> Any:
        y, finals, saved = prepared(flat)
        ctx.set_materialize_grads(False)
        ctx.kernels, ctx.options, ctx.finals = kernels, options, len(finals)
        ctx.save_for_backward(*flat, *saved)
        return (y, *finals)

    @staticmethod
    def backward(ctx: Any, grad_y: Any, *grad_finals: Any) -> Any:
        kernels, options, layout = ctx.kernels, ctx.options, ctx.kernels.layout
        needs = ctx.needs_input_grad[3:]
        wanted = (*needs[: layout.buffers.start], *needs[layout.states])
        if not ctx.finals:
            grad_finals = (None,) * len(layout.carried)
        tensors = (*ctx.saved_tensors, grad_y, *grad_finals)
        if torch.is_grad_enabled():  # create_graph: a second derivative must be refused
            apply: Any = _Gradients.apply
            found = apply(kernels, options, wanted, *tensors)
        else:
            found = _Gradients.forward(None, kernels, options, wanted, *tensors)
        cut = layout.buffers.start
        buffers = (None,) * (layout.buffers.stop - cut)
        return (None, None, None, *found[:cut], *buffers, *found[cut:], None, None)


class _Gradients(torch.autograd.Function):
    """The backward of `_Differentiable`, which has none of its own."""

    @staticmethod
    def forward(ctx: Any, kernels: Kernels, options: Options, wanted: Any, *tensors: Any) -> Any:
        length = kernels.layout.length
        end = length + len(kernels.signature.saved)
        found = kernels.backward(
            tensors[:length],
            tensors[length:end],
            tensors[end],
            tensors[end + 1 :],
            wanted,
            options,
        )
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(DOUBLE_BACKWARD)


differentiable: Any = _Differentiable.apply
"""`(kernels, prepared, options, *tensors)` to the output and the final states."""
