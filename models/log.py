"""What a run writes while it trains: a progress bar, `history.csv`, TensorBoard event files."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from .distributed import current

EVENTS = "tensorboard"  # folder of the event files
Row = Mapping[str, float | int | None]


class RunLog:
    """Takes figures by name at a step; `out` None writes no files."""

    def __init__(self, out: Path | None, tensorboard: bool, total: int, done: int, label: str):
        self.out = out
        self.writer: Any = _writer(out, done) if out and tensorboard else None
        self.bar = tqdm(
            total=total,
            initial=done,
            desc=label,
            unit="step",
            file=sys.stderr,
            disable=None if current().first else True,  # None: where nobody looks
            leave=False,
            mininterval=0.2,
        )

    def step(self) -> bool:
        """Count a step; true when the bar was drawn: at most some times a second."""
        return bool(self.bar.update())

    def show(self, loss: float, found: float | None, rate: float) -> None:
        evaluation = "" if found is None else f", evaluation {found:.4f}"
        self.bar.set_postfix_str(
            f"loss {loss:.4f}{evaluation}, {rate:,.0f} tokens/s, {memory() / 2**20:,.0f} MiB", False
        )

    def scalars(self, step: int, figures: Row) -> None:
        """Figures of the training loop, to TensorBoard."""
        if self.writer:
            for name, value in figures.items():
                if value is not None:
                    self.writer.add_scalar(name, value, step)

    def evaluation(self, history: Sequence[Row]) -> None:
        """The last row is new; the table is written anew, so a resumed run leaves no gap in it."""
        last = history[-1]
        figures = {f"evaluation/{n}": value for n, value in last.items() if n != "step"}
        self.scalars(int(last["step"] or 0), figures)
        if self.out:
            write_csv(self.out / "history.csv", history)

    def close(self) -> None:
        self.bar.close()
        if self.writer:
            self.writer.close()


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """One line per row; the columns are all names in order of appearance."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def memory() -> int:
    """Peak bytes of this process: of the GPU where one is in use, else of main memory."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # not a Unix
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _writer(out: Path, done: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("no TensorBoard logs: pip install 'fwgen[models]' brings it", file=sys.stderr)
        return None
    # What an interrupted run logged beyond its checkpoint is logged again.
    writer: Any = SummaryWriter
    return writer(str(out / EVENTS), purge_step=done + 1 if done else None)
