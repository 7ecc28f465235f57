"""The training loop of every task: schedule, precision, evaluation, stopping, exact resume.

To add a task, subclass `task.Task`, then

    train(task, TrainConfig(steps=..., lr=...), {"task": "mine", "name": ...}, out=folder)

does the rest. A run lives in one folder: `results.json` (what it was, history, summary),
`history.csv`, `checkpoint.safetensors` (to go on from) and `best.safetensors` (the model at its
best evaluation); both checkpoints hold the task's texts and can be used alone. A run that is
killed and resumed goes on bit by bit as if nothing had happened.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fwgen

from . import checkpoint, distributed
from .log import EVENTS, RunLog
from .running import Run
from .settings import TrainConfig
from .task import Task

OnStep = Callable[[int, float], None] | None
OWN_FILES = (checkpoint.LAST, checkpoint.BEST, "results.json", "history.csv")


def train(
    task: Task,
    config: TrainConfig,
    about: dict[str, Any],
    out: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: bool = False,
    on_step: OnStep = None,
    label: str = "",
    fsdp: bool = False,
) -> dict[str, Any]:
    """Train until solved, out of patience or out of steps; the result is also `out/results.json`.

    `about` describes the run and must be equal when it is resumed, or ArgumentError tells what
    differs; so it is when `out` holds a run and neither `resume` nor `overwrite` is asked for.
    Without `out` nothing is written. SIGINT and SIGTERM write a checkpoint and stop. Of several
    processes (see `distributed`) all call this; with `fsdp` each holds a part of the weights.
    """
    world = task.world
    if distributed.launched() > world.size:
        raise fwgen.ArgumentError(
            f"{about['task']}: expected one process, torchrun has started {distributed.launched()}"
        )
    run = Run(task, config, json.loads(json.dumps({**about, "train": asdict(config)})), out, fsdp)
    if resume and out:
        run.load()
    elif out:
        world.from_first(lambda: _claim(out, overwrite))
    progress = run.progress
    if progress.stopped in ("interrupted", "steps"):  # more steps may have been asked for
        progress.stopped = ""
    log = RunLog(out if world.first else None, tensorboard, config.steps, progress.step, label)
    try:
        with _stop_signals() as stop_asked:
            _loop(run, log, stop_asked, on_step)
    finally:
        log.close()
    progress.stopped = progress.stopped or "steps"
    result = run.summary()
    if out and world.first:
        _write_json(out / "results.json", result)
    return result


def _loop(run: Run, log: RunLog, stop_asked: Callable[[], bool], on_step: OnStep) -> None:
    """Steps, evaluations and checkpoints until the run has a reason to stop."""
    progress, config = run.progress, run.config
    start = time.perf_counter() - progress.seconds
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
        if run.world.total(stop_asked()):  # a signal may reach the processes in different steps
            progress.stopped = progress.stopped or "interrupted"
        progress.seconds = time.perf_counter() - start
        if progress.stopped or progress.step % config.checkpoint_every == 0:
            run.save()


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
