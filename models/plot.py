"""The retrieval figures, from results files: loss against S for each setting, learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes

import fwgen

from .figures import MARKERS, Panel, Result, draw, number, style, text_table

TITLES = {
    1: "Capacity: S pairs, each key once",
    2: "Re-assignment: 2S pairs over S keys",
}
COLUMNS = "model", "S", "loss at S", "at 2S", "accuracy", "steps", "end", "seconds", "tokens/s"


def plot(results: Sequence[Result], out: Path, which: str = "last", kind: str = "auto") -> None:
    """Write one picture with a panel per setting (loss against S) and one of learning curves.

    `kind` is "sizes", "curves" or "auto": curves whenever they stay readable, sizes when there
    are several. `which` is the evaluation that is plotted, "last" (as in the paper) or "best".
    """
    results = sorted(results, key=lambda r: (r["name"], r["config"]["size"]))
    colors = _colors(results)
    panels: list[Panel] = []
    for setting in (1, 2):
        those = [r for r in results if r["config"]["setting"] == setting]
        several = len({r["config"]["size"] for r in those}) > 1
        if those and (kind == "sizes" or (kind == "auto" and several)):
            panels.append(partial(_sizes, results=those, which=which, colors=colors))
        if those and (kind == "curves" or (kind == "auto" and len(those) <= len(MARKERS))):
            panels.append(partial(_curves, results=those, colors=colors))
    if not panels:
        raise fwgen.ArgumentError("results: expected at least one run to plot, got none")
    draw(panels, out)


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
        axis.plot(xs, ys, label=name, **style(colors[name]))
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
        look = style(colors[result["name"]]) | {"marker": "", "linewidth": 1.6}
        axis.plot([r["step"] for r in rows], [r["loss"] for r in rows], label=label, **look)
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
    for result in sorted(results, key=lambda r: (r["name"], r["config"]["size"])):
        last = result["last"] or {}
        row = [result["name"], str(result["config"]["size"])]
        row += [number(last.get(name)) for name in ("loss_S", "loss_2S")]
        row += [number(last.get("accuracy"), 3), str(result["steps"]), result["stopped"]]
        row += [f"{result['seconds']:.1f}", f"{result['tokens_per_second']:,}"]
        rows.append(row)
    return text_table(rows)
