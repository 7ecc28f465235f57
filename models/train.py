"""The training loop of every task: progress bar, evaluation, stopping, exact resume.

A run lives in one folder: `results.json` (config, history, summary) and a checkpoint made of
`checkpoint.json` (step, history, running sums) and the tensors it names (model, optimiser, random
number generators). A run that is killed and resumed goes on bit by bit as if nothing had happened.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

import fwgen


@dataclass(frozen=True)
class TrainConfig:
    """How long and how fast; defaults are those of the retrieval task."""

    steps: int = 100_000  # at most
    lr: float = 1e-3  # Adam
    eval_every: int = 100
    checkpoint_every: int = 1000
    patience: int = 10  # evaluations in a row without a new best; 0: no limit
    stop_loss: float = 1e-3  # solved at this evaluation loss


class Task(Protocol):
    """What the loop trains. `generators` are the task's own sources of random numbers."""

    generators: dict[str, torch.Generator]
    tokens_per_step: int

    @property
    def model(self) -> nn.Module: ...

    def loss(self) -> Tensor:
        """The loss on a fresh batch, a scalar."""

    def evaluate(self) -> dict[str, float]:
        """Figures on fresh data; "loss" decides when to stop."""


@dataclass
class Progress:
    """Everything that a resumed run has to know besides tensors; plain JSON."""

    step: int = 0
    best: float | None = None
    stale: int = 0  # evaluations since the best one
    loss_sum: float = 0.0  # of the steps since the last evaluation
    loss_count: int = 0
    seconds: float = 0.0
    stopped: str = ""  # "solved", "patience", "steps", "interrupted"
    history: list[dict[str, float | None]] = field(default_factory=list)

    def record(self, figures: dict[str, float], config: TrainConfig) -> None:
        """Take an evaluation into the history and decide whether to stop."""
        mean = self.loss_sum / self.loss_count if self.loss_count else math.nan
        row = {"step": float(self.step), "train_loss": mean, **figures}
        self.history.append({name: _finite(value) for name, value in row.items()})
        self.history[-1]["step"] = self.step
        self.loss_sum, self.loss_count = 0.0, 0
        loss = figures["loss"]
        if self.best is None or loss < self.best:  # NaN is never better
            self.best, self.stale = _finite(loss), 0
        else:
            self.stale += 1
        if loss <= config.stop_loss:
            self.stopped = "solved"
        elif config.patience and self.stale > config.patience:
            self.stopped = "patience"
        elif self.step >= config.steps:
            self.stopped = "steps"


def train(
    task: Task,
    config: TrainConfig,
    about: dict[str, Any],
    out: Path | None = None,
    resume: bool = False,
    on_step: Callable[[int, float], None] | None = None,
    label: str = "",
) -> dict[str, Any]:
    """Train until solved, out of patience or out of steps; the result is also `out/results.json`.

    `about` describes the run and must be equal when it is resumed, or ArgumentError tells what
    differs. Without `out` nothing is written. SIGINT and SIGTERM write a checkpoint and stop.
    """
    model = task.model
    adam = torch.optim.Adam(model.parameters(), lr=config.lr, fused=True)
    about = json.loads(json.dumps({**about, "train": asdict(config)}))
    progress = load_checkpoint(out, task, adam, about) if resume and out else Progress()
    if progress.stopped in ("interrupted", "steps"):  # more steps may have been asked for
        progress.stopped = ""
    start = time.perf_counter() - progress.seconds
    bar = tqdm(
        total=config.steps,
        initial=progress.step,
        desc=label,
        unit="step",
        file=sys.stderr,
        disable=None,
        leave=False,
        mininterval=0.2,
    )
    with bar, _stop_signals() as stop_asked:
        while not progress.stopped and progress.step < config.steps:
            adam.zero_grad(set_to_none=True)
            loss = task.loss()
            loss.backward()
            adam.step()
            value = loss.item()
            progress.step += 1
            progress.loss_sum += value
            progress.loss_count += 1
            if on_step:
                on_step(progress.step, value)
            if bar.update():  # true when it was drawn: at most some times a second
                rate = progress.step * task.tokens_per_step / (time.perf_counter() - start)
                last = progress.history[-1]["loss"] if progress.history else None
                found = "" if last is None else f", evaluation {last:.4f}"
                bar.set_postfix_str(f"loss {value:.4f}{found}, {rate:,.0f} tokens/s", False)
            if progress.step % config.eval_every == 0 or progress.step == config.steps:
                model.eval()
                with torch.no_grad():
                    figures = task.evaluate()
                model.train()
                progress.record(figures, config)
            if stop_asked():
                progress.stopped = progress.stopped or "interrupted"
            progress.seconds = time.perf_counter() - start
            if out and (progress.stopped or progress.step % config.checkpoint_every == 0):
                save_checkpoint(out, task, adam, about, progress)
    progress.stopped = progress.stopped or "steps"
    result = _summary(task, about, progress)
    if out:
        _write_json(out / "results.json", result)
    return result


def save_checkpoint(
    out: Path, task: Task, adam: torch.optim.Optimizer, about: dict[str, Any], progress: Progress
) -> None:
    """Write tensors, then the JSON file that names them: a kill in between leaves the old pair."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": tensor for name, tensor in task.model.state_dict().items()}
    for index, slots in adam.state_dict()["state"].items():
        tensors |= {f"adam.{index}.{name}": tensor for name, tensor in slots.items()}
    tensors["random.global"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    for name, generator in task.generators.items():
        tensors[f"random.task.{name}"] = generator.get_state()
    path = out / f"checkpoint-{progress.step:08d}.safetensors"
    temporary = path.with_suffix(".tmp")
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, temporary)
    temporary.replace(path)
    record = {"tensors": path.name, "about": about, "progress": asdict(progress)}
    _write_json(out / "checkpoint.json", record)
    for old in out.glob("checkpoint-*.safetensors"):
        if old != path:
            old.unlink()


def load_checkpoint(
    out: Path, task: Task, adam: torch.optim.Optimizer, about: dict[str, Any]
) -> Progress:
    """Put model, optimiser and generators back; raises ArgumentError if it is another run's."""
    if not (out / "checkpoint.json").is_file():
        raise fwgen.ArgumentError(f"resume: expected a checkpoint in {out}, found none")
    record = json.loads((out / "checkpoint.json").read_text())
    changed = [
        f"{name} is {there!r}, asked for {here!r}"
        for name, here, there in _differences(about, record["about"])
        if name != "train.steps"  # a run may be made longer
    ]
    if changed:
        raise fwgen.ArgumentError(f"resume: {out} is another run: " + "; ".join(changed))
    tensors = load_file(out / record["tensors"])

    def group(prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

    task.model.load_state_dict(group("model."))
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in group("adam.").items():
        index, slot = name.split(".")
        state.setdefault(int(index), {})[slot] = tensor
    groups = adam.state_dict()["param_groups"]
    adam.load_state_dict({"state": state, "param_groups": groups})
    torch.set_rng_state(tensors["random.global"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    for name, generator in task.generators.items():
        generator.set_state(tensors[f"random.task.{name}"])
    return Progress(**record["progress"])


def _summary(task: Task, about: dict[str, Any], progress: Progress) -> dict[str, Any]:
    tokens = progress.step * task.tokens_per_step
    return {
        **about,
        "steps": progress.step,
        "stopped": progress.stopped,
        "seconds": round(progress.seconds, 3),
        "tokens_per_second": round(tokens / max(progress.seconds, 1e-9)),
        "parameters": sum(p.numel() for p in task.model.parameters()),
        "best": progress.best,
        "last": progress.history[-1] if progress.history else None,
        "history": progress.history,
        "versions": {"fwgen": fwgen.__version__, "torch": torch.__version__},
    }


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
    temporary.write_text(json.dumps(value, indent=1) + "\n")
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
