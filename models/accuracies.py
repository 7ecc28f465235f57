"""Figures and tables of runs that are judged by accuracies, from results files.

A run has one accuracy, or one by kind (`accuracy_16`: of sequences with 16 pairs). Runs of the same
name are seeds of one model: their mean is shown, and the lowest and highest where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from .figures import Result, draw, style, text_table

TASKS = ("mqar", "qa")  # those that are judged so
KIND = "accuracy_"


def plot(results: Sequence[Result], out: Path) -> None:
    """Write a picture: accuracy against the kind where there are kinds, else over the steps."""
    panel = _by_kind if _kinds(results) else _by_step
    draw([lambda axis: panel(axis, _models(results))], out)


def table(results: Sequence[Result]) -> str:
    """One line per model, as text."""
    kinds = _kinds(results)
    names = [f"{KIND}{kind}" for kind in kinds] or ["accuracy"]
    heads = [f"{kind} pairs" for kind in kinds] or ["accuracy"]
    rows = [["model", "parameters", "steps", "seeds", *heads]]
    for model, runs in _models(results).items():
        about = [f"{runs[0]['parameters']:,}", f"{max(r['steps'] for r in runs):,}"]
        rows.append([model, *about, str(len(runs)), *(_cell(_last(runs, n)) for n in names)])
    return text_table(rows)


def _models(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result["name"], []).append(result)
    return found


def _kinds(results: Sequence[Result]) -> list[int]:
    last = [result["last"] or {} for result in results]
    return sorted({int(n.removeprefix(KIND)) for row in last for n in row if n.startswith(KIND)})


def _last(runs: Sequence[Result], name: str) -> list[float]:
    values = ((run["last"] or {}).get(name) for run in runs)
    return [value for value in values if value is not None]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = f"{sum(values) / len(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f}-{max(values):.3f})"


def _by_kind(axis: Axes, models: Mapping[str, Sequence[Result]]) -> None:
    for index, (model, runs) in enumerate(models.items()):
        found = {kind: _last(runs, f"{KIND}{kind}") for kind in _kinds(runs)}
        found = {kind: values for kind, values in found.items() if values}
        means = [sum(values) / len(values) for values in found.values()]
        axis.plot(list(found), means, label=model, **style(index))
        low, high = ([end(values) for values in found.values()] for end in (min, max))
        axis.fill_between(list(found), low, high, color=f"C{index % 10}", alpha=0.15)
    kinds = _kinds([run for runs in models.values() for run in runs])
    axis.set_xscale("log", base=2)
    axis.set_xticks(kinds, [str(kind) for kind in kinds])
    axis.set_xlabel("pairs")
    axis.set_ylabel("accuracy")


def _by_step(axis: Axes, models: Mapping[str, Sequence[Result]]) -> None:
    for index, (model, runs) in enumerate(models.items()):
        for run in runs:
            rows = [row for row in run["history"] if row.get("accuracy") is not None]
            look = style(index) | {"label": model if run is runs[0] else None}
            axis.plot([row["step"] for row in rows], [row["accuracy"] for row in rows], **look)
    axis.set_xlabel("steps")
    axis.set_ylabel("accuracy")
