"""The training loop of every task: schedule, precision, evaluation, stopping, exact resume.

To add a task, subclass `Task`, then

    train(task, TrainConfig(steps=..., lr=...), {"task": "mine", "name": ...}, out=folder)

does the rest. A run lives in one folder: `results.json` (what it was, history, summary),
`history.csv`, `checkpoint.safetensors` (to go on from) and `best.safetensors` (the model at its
best evaluation); both checkpoints hold the task's texts and can be used alone. A run that is
killed and resumed goes on bit by bit as if nothing had happened.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fwgen

from . import checkpoint
from .log import EVENTS, RunLog
from .settings import PRECISIONS, TrainConfig

OWN_FILES = (checkpoint.LAST, checkpoint.BEST, "results.json", "history.csv")


class Task:
    """What the loop trains: a model, its data, its loss.

    A subclass sets the attributes and has `loss` and `evaluate`; `generators` are its own sources
    of random numbers. One that has more to remember than these (its place in the data, states that
    are carried) extends `state` and `load_state`.
    """

    model: nn.Module
    tokens_per_step: int  # of one `loss()`
    device: str = "cpu"
    generators: Mapping[str, torch.Generator]
    texts: Mapping[str, str] = {}  # what a checkpoint needs to be used alone: rule, tokenizer

    def loss(self) -> Tensor:
        """The loss on the next batch, a scalar."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Figures on held-out data; "loss" decides what is best and when to stop.

        A figure "solved" that is 1 stops the training whatever the loss.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """All that the next batch depends on besides the model."""
        return {f"generator.{n}": g.get_state() for n, g in self.generators.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave."""
        for name, generator in self.generators.items():
            generator.set_state(state[f"generator.{name}"])


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


def train(
    task: Task,
    config: TrainConfig,
    about: dict[str, Any],
    out: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: bool = False,
    on_step: Callable[[int, float], None] | None = None,
    label: str = "",
) -> dict[str, Any]:
    """Train until solved, out of patience or out of steps; the result is also `out/results.json`.

    `about` describes the run and must be equal when it is resumed, or ArgumentError tells what
    differs; so it is when `out` holds a run and neither `resume` nor `overwrite` is asked for.
    Without `out` nothing is written. SIGINT and SIGTERM write a checkpoint and stop.
    """
    run = _Run(task, config, json.loads(json.dumps({**about, "train": asdict(config)})), out)
    if resume and out:
        run.load()
    elif out:
        _claim(out, overwrite)
    progress = run.progress
    if progress.stopped in ("interrupted", "steps"):  # more steps may have been asked for
        progress.stopped = ""
    log = RunLog(out, tensorboard, config.steps, progress.step, label)
    start = time.perf_counter() - progress.seconds
    try:
        with _stop_signals() as stop_asked:
            while not progress.stopped and progress.step < config.steps:
                before = time.perf_counter()
                value = run.step()
                progress.train_seconds += time.perf_counter() - before
                if on_step:
                    on_step(progress.step, value)
                rate = progress.step * run.tokens_per_step / max(progress.train_seconds, 1e-9)
                if log.step():
                    last = progress.history[-1]["loss"] if progress.history else None
                    log.show(value, last, rate)
                if progress.step % config.log_every == 0:
                    lr = config.rate(progress.step - 1)
                    log.scalars(progress.step, {"loss": value, "lr": lr, "tokens/s": rate})
                if progress.step % config.eval_every == 0 or progress.step == config.steps:
                    run.evaluate()
                    log.evaluation(progress.history)
                if stop_asked():
                    progress.stopped = progress.stopped or "interrupted"
                progress.seconds = time.perf_counter() - start
                if progress.stopped or progress.step % config.checkpoint_every == 0:
                    run.save()
    finally:
        log.close()
    progress.stopped = progress.stopped or "steps"
    result = run.summary()
    if out:
        _write_json(out / "results.json", result)
    return result


class _Run:
    """A task with its optimiser and progress: one step, one evaluation, save and load."""

    def __init__(
        self, task: Task, config: TrainConfig, about: dict[str, Any], out: Path | None
    ) -> None:
        self.task, self.config, self.about, self.out = task, config, about, out
        self.progress = Progress()
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
        for _ in range(config.accumulate):
            with self._precision():
                loss = self.task.loss() / config.accumulate
            torch.autograd.backward(self.scaler.scale(loss))
            value += loss.item()
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
            figures = self.task.evaluate()
        self.task.model.train()
        if self.progress.record(figures, self.config) and self.out:
            tensors = checkpoint.model_tensors(self.task.model)
            checkpoint.write(self.out / checkpoint.BEST, tensors, self.task.texts, self._record())

    def save(self) -> None:
        if not self.out:
            return
        if self.scaler.is_enabled():
            self.progress.scaler = self.scaler.state_dict()
        tensors = checkpoint.model_tensors(self.task.model) | checkpoint.random_tensors()
        tensors |= checkpoint.optimizer_tensors(self.optimizer)
        tensors |= {f"task.{name}": tensor for name, tensor in self.task.state().items()}
        checkpoint.write(self.out / checkpoint.LAST, tensors, self.task.texts, self._record())

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
        self.task.model.load_state_dict(found.group("model"))
        checkpoint.put_optimizer(self.optimizer, found.group("optimizer"))
        checkpoint.put_random(found.group("random"))
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

    def _record(self) -> dict[str, Any]:
        return {"about": self.about, "progress": asdict(self.progress)}

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.kind, self.dtype, enabled=self.dtype is not None)


def _claim(out: Path, overwrite: bool) -> None:
    """See that no earlier run is lost without a word."""
    there = [out / name for name in OWN_FILES if (out / name).exists()]
    if there and not overwrite:
        raise fwgen.ArgumentError(
            f"out: {out} holds a run; --resume goes on with it, --overwrite replaces it, "
            "--out names another folder"
        )
    for path in there:
        path.unlink()
    shutil.rmtree(out / EVENTS, ignore_errors=True)


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


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Turn SIGINT and SIGTERM into a question that the loop asks; a second SIGINT kills at once."""
    asked: list[int] = []

    def note(number: int, _frame: object) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: the caller handles signals
        old = {}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
