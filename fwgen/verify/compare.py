"""Errors beside what is allowed, both against a float64 golden."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

SLACK = 10.0
EPSILONS = 8


@dataclass(frozen=True)
class Row:
    """One tensor of one comparison: the largest error, infinite for NaN or a wrong shape."""

    tensor: str
    error: float
    allowed: float

    @property
    def fine(self) -> bool:
        """Whether the error is within what is allowed."""
        return self.error <= self.allowed

    @property
    def ratio(self) -> float:
        """Error over allowance."""
        return self.error / self.allowed


def compare(
    got: Mapping[str, torch.Tensor],
    golden: Mapping[str, torch.Tensor],
    eager: Sequence[Mapping[str, torch.Tensor]],
    dtype: torch.dtype,
) -> list[Row]:
    """A row per tensor of `golden`.

    Allowed is a small factor times the largest error of `eager`, or a few roundings of the largest
    value where that is more. `eager` are results of PyTorch on the same problem whose errors are
    those of float32: computed in float32, or from inputs that were moved by a rounding of float32;
    for another dtype they are scaled by the ratio of the epsilons. They measure conditioning.

    A gradient that is zero altogether has no size of its own (that of a decay before the first
    write, a sum of terms that cancel): it is judged by the largest of the other gradients.
    """
    eps = torch.finfo(dtype).eps
    scale = eps / torch.finfo(torch.float32).eps
    slack = SLACK * 10 if dtype == torch.float64 else SLACK
    overall = max((_largest(t) for name, t in golden.items() if name.startswith("d.")), default=0.0)
    rows = []
    for name, want in golden.items():
        norm = _largest(want) or (overall if name.startswith("d.") else 0.0)
        distances = [_largest(other[name] - want) for other in eager]
        # Where eager PyTorch overflowed: no licence to do the same.
        distance = max((d for d in distances if math.isfinite(d)), default=0.0)
        allowed = slack * max(distance * scale, EPSILONS * eps * norm, eps * 1e-6)
        rows.append(Row(name, _error(got.get(name), want), allowed))
    return rows


def _error(got: torch.Tensor | None, want: torch.Tensor) -> float:
    if got is None or got.shape != want.shape:
        return math.inf
    error = _largest(got - want)
    return math.inf if math.isnan(error) else error


def _largest(value: torch.Tensor) -> float:
    return value.abs().max().item() if value.numel() else 0.0
