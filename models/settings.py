"""How a run is trained, and the checks that every config shares."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

import fwgen

SCHEDULES = ("constant", "cosine", "inverse-sqrt")
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class TrainConfig:
    """How long and how fast; defaults are those of the retrieval task."""

    steps: int = 100_000  # at most
    lr: float = 1e-3
    schedule: str = "constant"  # or "cosine" (to zero at the last step) or "inverse-sqrt"
    warmup: int = 0  # steps in which the rate rises from zero
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0  # decoupled, on matrices
    clip: float = 0.0  # of the gradient's norm; 0: none
    accumulate: int = 1  # batches per step
    precision: str = "float32"  # autocast to bfloat16 or float16; states stay float32
    eval_every: int = 100
    checkpoint_every: int = 1000
    log_every: int = 10  # TensorBoard
    patience: int = 10  # evaluations in a row without a new best; 0: no limit
    stop_loss: float = 1e-3  # solved at this evaluation loss

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "eval_every", "checkpoint_every", "log_every"):
            at_least(name, getattr(self, name), 1)
        for name in ("warmup", "weight_decay", "clip", "patience"):
            at_least(name, getattr(self, name), 0)
        for name in ("lr", "eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise fwgen.ArgumentError(
                    f"{name}: expected a positive number, got {getattr(self, name)}"
                )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise fwgen.ArgumentError(f"betas: expected two numbers in [0, 1), got {self.betas}")
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("precision", self.precision, tuple(PRECISIONS))

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0: a function of the step alone."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine" and step >= self.warmup:
            done = (step - self.warmup) / max(1, self.steps - self.warmup)
            return self.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        if self.schedule == "inverse-sqrt" and step >= self.warmup:
            return self.lr * math.sqrt(max(1, self.warmup) / (step + 1))
        return self.lr * warm


def device_of(name: str) -> str:
    """A device that exists; raises ArgumentError for another."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count()}
    if (device.index or 0) >= counts.get(device.type, 0):
        here = "cpu" + (f" and cuda with {counts['cuda']} GPUs" if counts["cuda"] else " only")
        raise fwgen.ArgumentError(f"device: this machine has {here}, asked for {name}")
    return name


def at_least(name: str, value: float, least: float, below: float = math.inf) -> None:
    """Raise ArgumentError for a value outside [least, below), NaN included."""
    if not least <= value < below:
        end = "" if below == math.inf else f" and below {below}"
        raise fwgen.ArgumentError(f"{name}: expected at least {least}{end}, got {value}")


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ArgumentError for a word that is none of these."""
    if value not in allowed:
        raise fwgen.ArgumentError(f"{name}: expected one of {', '.join(allowed)}, got {value}")
