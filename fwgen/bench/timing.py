"""Interleaved timing of contenders, and whether the machine was quiet meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

Tensors = dict[str, torch.Tensor]
BUSY = 0.15
"""Processors used by others above which ratios are not to be trusted."""


@dataclass(frozen=True)
class Contender:
    """An implementation: a function of named inputs to the output, and its own copy of them.

    `rounds`, and `seconds` in all, limit how often each pass of a slow one is timed; once it is in
    any case. Every call allocates its results, as a user's does.
    """

    run: Callable[[Tensors], torch.Tensor]
    inputs: Tensors
    weight: torch.Tensor
    rounds: int = 1_000_000
    seconds: float = math.inf

    def once(self, backward: bool) -> tuple[float, torch.Tensor, list[torch.Tensor | None]]:
        """Seconds of one forward, or forward and backward; the output and the gradients."""
        leaves = {
            n: t.detach().requires_grad_(backward and t.is_floating_point())
            for n, t in self.inputs.items()
        }
        start = time.perf_counter()
        with torch.set_grad_enabled(backward):
            y = self.run(leaves)
            if backward:
                y.backward(self.weight)  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - start
        return seconds, y.detach(), [t.grad for t in leaves.values()]


@dataclass(frozen=True)
class Timing:
    """Seconds: the median and the least of the rounds."""

    median: float
    least: float


def interleaved(
    contenders: Mapping[str, Contender], rounds: int, passes: tuple[bool, ...] = (False, True)
) -> dict[tuple[str, bool], Timing]:
    """Time every contender in turn, `rounds` times over, after one untimed call of each.

    Keys are (name, whether the backward is included).
    """
    found: dict[tuple[str, bool], list[float]] = {
        (name, backward): [] for name in contenders for backward in passes
    }
    for turn in range(-1, rounds):
        for (name, backward), seconds in found.items():
            contender = contenders[name]
            enough = turn >= contender.rounds or sum(seconds) >= contender.seconds
            if enough or (turn < 0 and contender.rounds < 4):
                continue
            taken = contender.once(backward)[0]
            if turn >= 0:
                seconds.append(taken)
    return {key: Timing(statistics.median(s), min(s)) for key, s in found.items()}


def agree(mine: Contender, other: Contender, backward: bool = True) -> float:
    """The largest relative difference of outputs and gradients in the norm.

    Layouts may differ: `[B, T, H, ...]` against `[B, H, T, ...]`.
    """
    _, y, grads = mine.once(backward)
    _, y2, grads2 = other.once(backward)
    pairs = [(y, y2)]
    pairs += [(a, b) for a, b in zip(grads, grads2, strict=True) if a is not None and b is not None]
    return max(_difference(a, b if a.shape == b.shape else b.transpose(1, 2)) for a, b in pairs)


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


class Quiet:
    """A context that measures how many processors others used inside it (0 where unknown)."""

    others = 0.0

    def __enter__(self) -> Quiet:
        self._start = time.perf_counter()
        self._machine, self._own = _machine_seconds(), sum(os.times()[:4])
        return self

    def __exit__(self, *_: object) -> None:
        wall = time.perf_counter() - self._start
        used = _machine_seconds() - self._machine
        self.others = max(0.0, used - (sum(os.times()[:4]) - self._own)) / max(wall, 1e-9)


def _machine_seconds() -> float:
    """Processor seconds of the whole machine since it started."""
    try:
        line = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = (int(word) for word in line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / float(os.sysconf("SC_CLK_TCK"))


def peak_bytes(call: Callable[[], object]) -> int | None:
    """How far the resident memory rose above its start during a call; None where unknown."""
    status = Path("/proc/self/status")
    try:
        with contextlib.suppress(AttributeError, OSError):
            # Free memory that the allocator keeps would hide what the call takes.
            ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        before = _kilobytes(status, "VmRSS")
        call()
        return max(0, _kilobytes(status, "VmHWM") - before) * 1024
    except (OSError, StopIteration):
        call()
        return None


def _kilobytes(status: Path, field: str) -> int:
    lines = status.read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(field + ":")).split()[1])
