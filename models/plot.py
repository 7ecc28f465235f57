"""The retrieval figures, from results files: loss against S for each setting, learning curves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed to write a file

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

import fwgen

Result = dict[str, Any]

TITLES = {
    1: "Capacity: S pairs, each key once",
    2: "Re-assignment: 2S pairs over S keys",
}
MARKERS = "osD^vP*Xp<>h"
COLUMNS = "model", "S", "loss at S", "at 2S", "accuracy", "steps", "end", "seconds", "tokens/s"


def load_results(paths: Iterable[Path]) -> list[Result]:
    """The results below each path (a file, or a folder that is searched), ordered by name and size.

    Raises ArgumentError for a path without results or a file that is none.
    """
    results = []
    for path in paths:
        files = sorted(path.rglob("results.json")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise fwgen.ArgumentError(f"results: expected results.json at {path}, found none")
        for file in files:
            try:
                result = json.loads(file.read_text())
                complete = {"name", "config", "history", "last"} <= result.keys()
            except (ValueError, AttributeError):
                complete = False
            if not complete:
                raise fwgen.ArgumentError(f"results: {file} is not a results file of fwgen train")
            results.append(result)
    return sorted(results, key=lambda r: (r["name"], r["config"]["size"]))


def plot(results: Sequence[Result], out: Path, which: str = "last", kind: str = "auto") -> None:
    """Write one picture with a panel per setting (loss against S) and one of learning curves.

    `kind` is "sizes", "curves" or "auto": curves whenever they stay readable, sizes when there
    are several. `which` is the evaluation that is plotted, "last" (as in the paper) or "best".
    """
    formats = FigureCanvasAgg.get_supported_filetypes()
    if out.suffix.removeprefix(".").lower() not in formats:
        raise fwgen.ArgumentError(
            f"out: expected a name that ends in .{', .'.join(sorted(formats))}, got {out}"
        )
    panels: list[tuple[str, list[Result]]] = []
    for setting in (1, 2):
        those = [r for r in results if r["config"]["setting"] == setting]
        several = len({r["config"]["size"] for r in those}) > 1
        if those and (kind == "sizes" or (kind == "auto" and several)):
            panels.append(("sizes", those))
        if those and (kind == "curves" or (kind == "auto" and len(those) <= len(MARKERS))):
            panels.append(("curves", those))
    if not panels:
        raise fwgen.ArgumentError("results: expected at least one run to plot, got none")
    figure, axes = plt.subplots(
        1, len(panels), figsize=(6.2 * len(panels), 4.4), squeeze=False, layout="constrained"
    )
    colors = _colors(results)
    for axis, (panel, those) in zip(axes[0], panels, strict=True):
        if panel == "sizes":
            _sizes(axis, those, which, colors)
        else:
            _curves(axis, those, colors)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def _sizes(axis: Axes, results: Sequence[Result], which: str, colors: dict[str, int]) -> None:
    """Evaluation loss against S, one line per model; several seeds are averaged."""
    for name, those in _by_name(results).items():
        points: dict[int, list[float]] = {}
        for result in those:
            loss = result["best"] if which == "best" else (result["last"] or {}).get("loss")
            if loss is not None:  # diverged
                points.setdefault(result["config"]["size"], []).append(loss)
        xs = sorted(points)
        ys = [sum(points[x]) / len(points[x]) for x in xs]
        axis.plot(xs, ys, label=name, **_style(colors[name]))
    setting, keys = results[0]["config"]["setting"], {r["config"]["d_key"] for r in results}
    axis.set_title(TITLES[setting] + f" (d_key {', '.join(map(str, sorted(keys)))})")
    axis.set_xlabel("unique keys S")
    _finish(axis, results)


def _curves(axis: Axes, results: Sequence[Result], colors: dict[str, int]) -> None:
    """Evaluation loss against steps, on a logarithmic scale, one line per run."""
    sizes = {r["config"]["size"] for r in results}
    for result in results:
        rows = [row for row in result["history"] if row["loss"] is not None]
        label = result["name"] + (f", S={result['config']['size']}" if len(sizes) > 1 else "")
        style = _style(colors[result["name"]]) | {"marker": "", "linewidth": 1.6}
        axis.plot([r["step"] for r in rows], [r["loss"] for r in rows], label=label, **style)
    axis.set_yscale("log")
    setting = results[0]["config"]["setting"]
    only = f", S = {sizes.pop()}" if len(sizes) == 1 else ""
    axis.set_title(f"Learning curves, setting {setting}{only}")
    axis.set_xlabel("steps")
    _finish(axis, results)


def _finish(axis: Axes, results: Sequence[Result]) -> None:
    lengths = sorted({r["config"]["eval_length"] for r in results})
    axis.set_ylabel(f"evaluation loss, length {' or '.join(lengths)}")
    axis.axhline(0.5, color="0.7", linewidth=0.8, linestyle=":")  # the answer zero
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, frameon=False)


def _style(index: int) -> dict[str, Any]:
    return {"color": f"C{index % 10}", "marker": MARKERS[index % len(MARKERS)], "markersize": 4}


def _colors(results: Sequence[Result]) -> dict[str, int]:
    return {name: index for index, name in enumerate(_by_name(results))}


def _by_name(results: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result["name"], []).append(result)
    return groups


def table(results: Sequence[Result]) -> str:
    """One line per run, as text: what was reached, where it stopped, how fast it went."""
    rows = [list(COLUMNS)]
    for result in results:
        last = result["last"] or {}
        row = [result["name"], str(result["config"]["size"])]
        row += [_number(last.get(name)) for name in ("loss_S", "loss_2S")]
        row += [_number(last.get("accuracy"), 3), str(result["steps"]), result["stopped"]]
        row += [f"{result['seconds']:.1f}", f"{result['tokens_per_second']:,}"]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells))
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
