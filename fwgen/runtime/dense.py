"""How tensors must lie in memory for the CPU kernels, and what makes others lie so."""

from __future__ import annotations

from collections.abc import Callable

import torch

Convert = Callable[[torch.Tensor], torch.Tensor]


def dense_tail(tensor: torch.Tensor, lead: int) -> bool:
    """Whether the axes from `lead` on are contiguous among themselves."""
    step = 1
    for size, stride in zip(
        reversed(tensor.shape[lead:]), reversed(tensor.stride()[lead:]), strict=True
    ):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def conversion(tensor: torch.Tensor, lead: int, dtype: torch.dtype) -> Convert | None:
    """What makes a tensor readable for the kernels; None for nothing."""
    if tensor.dtype != dtype:
        if dense_tail(tensor, lead):
            return lambda t: t.resolve_neg().to(dtype)
        return lambda t: t.to(dtype).contiguous()
    if tensor.is_neg() or not dense_tail(tensor, lead):
        return lambda t: t.resolve_neg().contiguous()
    return None
