"""Tensors of each kind of draw, from standard normal ones (n).

    decay     -|n| - 0.05: log-decays
    positive  |n| + 0.5
    rate      sigmoid(n): rates and forget gates
    key       n / sqrt(last dim): products of keys are then about 1
    small     0.4 n
    normal    n
    flag      0 or 1, integers

Which kind a tensor is drawn as is part of a case; draws outside of what a rule is meant for would
only test overflow.
"""

from __future__ import annotations

import torch


def transform(kind: str, normal: torch.Tensor, dims: int) -> torch.Tensor:
    """A standard normal tensor made into that kind; `dims` counts the trailing axes of a token."""
    match kind:
        case "decay":
            return -normal.abs() - 0.05
        case "positive":
            return normal.abs() + 0.5
        case "rate":
            return torch.sigmoid(normal)
        case "key":
            return normal / max(normal.shape[-1], 1) ** 0.5 if dims else 0.4 * normal
        case "small":
            return 0.4 * normal
        case "flag":
            return (normal > 0).to(torch.int64)
        case _:
            return normal
