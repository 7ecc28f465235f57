"""Results files and what every figure and table of them shares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed to write a file

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

import fwgen

Result = dict[str, Any]
Panel = Callable[[Axes], None]
MARKERS = "osD^vP*Xp<>h"
RUN = {"task", "name", "config", "history", "last"}  # what `fwgen train` writes
EVALUATION = {"task", "name", "rows"}  # what `fwgen eval --json` prints


def load_results(paths: Iterable[Path]) -> list[Result]:
    """The results at each path (a file, or a folder searched for results.json), ordered by name.

    Raises ArgumentError for a path without results, a file that is none, or different tasks.
    """
    results = []
    for path in paths:
        files = sorted(path.rglob("results.json")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise fwgen.ArgumentError(f"results: expected results.json at {path}, found none")
        results += [_load(file) for file in files]
    tasks = sorted({result["task"] for result in results})
    if len(tasks) != 1:
        found = ", ".join(tasks) or "none"
        raise fwgen.ArgumentError(f"results: expected runs of one task, found {found}")
    return sorted(results, key=lambda r: str(r["name"]))


def _load(file: Path) -> Result:
    try:
        result: Result = json.loads(file.read_text(encoding="utf-8"))
        complete = result.keys() >= RUN or result.keys() >= EVALUATION
    except (ValueError, AttributeError):
        complete = False
    if not complete:
        raise fwgen.ArgumentError(f"results: {file} is not a results file of fwgen train or eval")
    return result


def draw(panels: Sequence[Panel], out: Path) -> None:
    """Write one picture with the panels side by side; its suffix decides the format."""
    formats = FigureCanvasAgg.get_supported_filetypes()
    if out.suffix.removeprefix(".").lower() not in formats:
        raise fwgen.ArgumentError(
            f"out: expected a name that ends in .{', .'.join(sorted(formats))}, got {out}"
        )
    figure, axes = plt.subplots(
        1, len(panels), figsize=(6.2 * len(panels), 4.4), squeeze=False, layout="constrained"
    )
    try:
        for axis, panel in zip(axes[0], panels, strict=True):
            panel(axis)
            axis.grid(alpha=0.25)
            axis.legend(fontsize=8, frameon=False)
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=150)
    finally:
        plt.close(figure)


def style(index: int) -> dict[str, Any]:
    """Colour and marker of the index-th model."""
    return {"color": f"C{index % 10}", "marker": MARKERS[index % len(MARKERS)], "markersize": 4}


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells))
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


def number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
