"""A run under way: one step, one evaluation, and the files that it goes on from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fwgen

from . import checkpoint, distributed
from .settings import PRECISIONS, TrainConfig
from .task import Task


@dataclass
class Progress:
    """Everything that a resumed run has to know besides tensors; plain JSON."""

    step: int = 0
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # evaluations since the best one
    loss_sum: float = 0.0  # of the steps since the last evaluation
    loss_count: int = 0
    seconds: float = 0.0
    train_seconds: float = 0.0  # without evaluations
    scaler: dict[str, Any] = field(default_factory=dict)  # of float16 gradients
    stopped: str = ""  # "solved", "patience", "steps", "diverged", "interrupted"
    history: list[dict[str, float | None]] = field(default_factory=list)

    def record(self, figures: dict[str, float], config: TrainConfig) -> bool:
        """Take an evaluation into the history and decide whether to stop; true for a new best."""
        mean = self.loss_sum / self.loss_count if self.loss_count else math.nan
        row = {"step": float(self.step), "train_loss": mean, **figures}
        self.history.append({name: _finite(value) for name, value in row.items()})
        self.history[-1]["step"] = self.step
        lost = self.loss_count > 0 and math.isnan(mean)
        self.loss_sum, self.loss_count = 0.0, 0
        loss = figures["loss"]
        better = math.isfinite(loss) and (self.best is None or loss < self.best)
        if better:
            self.best, self.stale, self.best_step = loss, 0, self.step
        else:
            self.stale += 1
        if loss <= config.stop_loss or figures.get("solved") == 1:
            self.stopped = "solved"
        elif lost and math.isnan(loss):  # the weights are NaN: no step brings them back
            self.stopped = "diverged"
        elif config.patience and self.stale > config.patience:
            self.stopped = "patience"
        elif self.step >= config.steps:
            self.stopped = "steps"
        return better


class Run:
    """A task with its optimiser and progress: one step, one evaluation, save and load."""

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        about: dict[str, Any],
        out: Path | None,
        fsdp: bool = False,
    ) -> None:
        self.task, self.config, self.about, self.out = task, config, about, out
        self.progress, self.world = Progress(), task.world
        self.spread = task.spread = distributed.spread(task.model, self.world, fsdp)
        distributed.random_apart(self.world)
        self.tokens_per_step = task.tokens_per_step * config.accumulate
        parameters = [p for p in task.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            fused=True,
        )
        self.dtype = PRECISIONS[config.precision]
        self.kind = torch.device(task.device).type
        # float16 gradients of small losses would vanish; bfloat16 has float32's range.
        self.scaler = torch.amp.GradScaler(self.kind, enabled=self.dtype is torch.float16)

    def step(self) -> float:
        """Forward and backward over `accumulate` batches, one update; returns the mean loss."""
        config, progress = self.config, self.progress
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(progress.step)
        self.optimizer.zero_grad(set_to_none=True)
        value = 0.0
        for batch in range(config.accumulate):
            more = batch + 1 < config.accumulate
            with distributed.unsynced(self.spread) if more else nullcontext():
                with self._precision():
                    loss = self.task.loss() / config.accumulate
                torch.autograd.backward(self.scaler.scale(loss))
            value += loss.item()
        value = self.world.total(value) / self.world.size
        if config.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.task.model.parameters(), config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        progress.step += 1
        progress.loss_sum += value
        progress.loss_count += 1
        return value

    def evaluate(self) -> None:
        self.task.model.eval()
        with torch.no_grad(), self._precision():
            own = self.task.evaluate()
        figures = self.world.from_first(lambda: own)  # all decide alike, to the last bit
        self.task.model.train()
        if self.progress.record(figures, self.config) and self.out:
            self._write(checkpoint.BEST, checkpoint.model_tensors(self.task.model))

    def save(self) -> None:
        if not self.out:
            return
        if self.scaler.is_enabled():
            self.progress.scaler = self.scaler.state_dict()
        tensors = checkpoint.model_tensors(self.task.model)
        tensors |= checkpoint.optimizer_tensors(self.optimizer)
        random = distributed.random_states(self.world)
        for group, found in (("random", random), ("task", self.task.state())):
            tensors |= {f"{group}.{name}": tensor for name, tensor in found.items()}
        self._write(checkpoint.LAST, tensors)

    def _write(self, name: str, tensors: dict[str, Tensor]) -> None:
        if self.out and self.world.first:
            record = {"about": self.about, "progress": asdict(self.progress)}
            checkpoint.write(self.out / name, tensors, self.task.texts, record)

    def load(self) -> None:
        """Put everything back; raises ArgumentError if what lies there is another run's."""
        assert self.out is not None
        if not (self.out / checkpoint.LAST).is_file():
            raise fwgen.ArgumentError(f"resume: expected a checkpoint in {self.out}, found none")
        found = checkpoint.read(self.out / checkpoint.LAST)
        free = set() if self.config.schedule == "cosine" else {"train.steps"}  # may be made longer
        changed = [
            f"{name} is {there!r}, asked for {here!r}"
            for name, here, there in _differences(self.about, found.run["about"])
            if name not in free
        ]
        if found.texts.get("rule") != self.task.texts.get("rule"):
            changed.append("the text of its rule is another one")
        if changed:
            raise fwgen.ArgumentError(f"resume: {self.out} is another run: " + "; ".join(changed))
        checkpoint.put_model(self.task.model, found.group("model"))
        checkpoint.put_optimizer(self.optimizer, found.group("optimizer"))
        distributed.put_random(found.group("random"), self.world)
        self.task.load_state(found.group("task"))
        self.progress = Progress(**found.run["progress"])
        if self.progress.scaler:
            self.scaler.load_state_dict(self.progress.scaler)

    def summary(self) -> dict[str, Any]:
        progress, model = self.progress, self.task.model
        tokens = progress.step * self.tokens_per_step
        return {
            **self.about,
            "steps": progress.step,
            "stopped": progress.stopped,
            "seconds": round(progress.seconds, 3),
            "train_seconds": round(progress.train_seconds, 3),
            "tokens_per_second": round(tokens / max(progress.train_seconds, 1e-9)),
            "parameters": sum(p.numel() for p in model.parameters()),
            "best": progress.best,
            "best_step": progress.best_step,
            "last": progress.history[-1] if progress.history else None,
            "history": progress.history,
            "versions": {"fwgen": fwgen.__version__, "torch": torch.__version__},
        }

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.kind, self.dtype, enabled=self.dtype is not None)


def _differences(here: Any, there: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, here, there) of every entry in which two JSON trees differ."""
    if isinstance(here, dict) and isinstance(there, dict):
        for key in sorted(here.keys() | there.keys()):
            yield from _differences(here.get(key), there.get(key), f"{name}.{key}".strip("."))
    elif here != there:
        yield name, here, there


def _finite(value: float) -> float | None:
    """JSON has no NaN: a loss that diverged is null."""
    return value if math.isfinite(value) else None
