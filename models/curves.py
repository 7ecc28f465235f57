"""Figures and tables of runs that are judged by a perplexity or a loss, from results files.

Runs are shown over their steps; evaluations (`fwgen eval --context 64,256,0 --json`) over the
length of the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from .figures import Result, draw, number, style, text_table

ALL = "all"  # the context of a state that is carried to the end


def plot(results: Sequence[Result], out: Path) -> None:
    """Write a picture: the held-out figure over steps, or over contexts where rows are given."""
    runs = [r for r in results if "rows" not in r]
    evaluations = [r for r in results if "rows" in r]
    panels = []
    if runs:
        panels.append(lambda axis: _steps(axis, runs))
    if evaluations:
        panels.append(lambda axis: _contexts(axis, evaluations))
    draw(panels, out)


def table(results: Sequence[Result]) -> str:
    """One line per run or per context, as text."""
    rows = []
    runs = [r for r in results if "rows" not in r]
    if runs:
        rows.append(["model", "parameters", "steps", "end", "best", "tokens/s", "minutes"])
    for r in runs:
        figure = _figure(r)
        best = min((h[figure] for h in r["history"] if h.get(figure) is not None), default=None)
        row = [r["name"], f"{r['parameters']:,}", str(r["steps"]), r["stopped"], number(best, 2)]
        rows.append([*row, f"{r['tokens_per_second']:,}", f"{r['train_seconds'] / 60:.1f}"])
    parts = [text_table(rows)] if rows else []
    contexts = _all_contexts(results)
    if contexts:
        rows = [["model", *(f"context {context}" for context in contexts)]]
        for r in results:
            found = {_context(row): row["perplexity"] for row in r.get("rows", ())}
            if found:
                rows.append([r["name"], *(number(found.get(c), 2) for c in contexts)])
        parts.append(text_table(rows))
    return "\n\n".join(parts)


def _steps(axis: Axes, runs: Sequence[Result]) -> None:
    figure = _figure(runs[0])
    for index, run in enumerate(runs):
        rows = [row for row in run["history"] if row.get(figure) is not None]
        look = style(index) | {"marker": "", "linewidth": 1.6}
        label = f"{run['name']} ({run['tokens_per_second']:,} tokens/s)"
        axis.plot([r["step"] for r in rows], [r[figure] for r in rows], label=label, **look)
    _logarithmic(axis)
    axis.set_title("Held-out text while training")
    axis.set_xlabel("steps")
    axis.set_ylabel(figure)


def _contexts(axis: Axes, evaluations: Sequence[Result]) -> None:
    contexts = _all_contexts(evaluations)
    places = {context: place for place, context in enumerate(contexts)}
    for index, found in enumerate(evaluations):
        rows = sorted(found["rows"], key=lambda row: places[_context(row)])
        xs = [places[_context(row)] for row in rows]
        axis.plot(xs, [row["perplexity"] for row in rows], label=found["name"], **style(index))
    axis.set_xticks(list(places.values()), contexts)
    _logarithmic(axis)
    axis.set_title("Perplexity by what the model has read")
    axis.set_xlabel("context in tokens")
    axis.set_ylabel("perplexity")


def _logarithmic(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}")


def _figure(run: Result) -> str:
    return "perplexity" if "perplexity" in (run["last"] or {}) else "loss"


def _context(row: Result) -> str:
    return str(row["context"] or ALL)


def _all_contexts(results: Sequence[Result]) -> list[str]:
    found = {_context(row) for r in results for row in r.get("rows", ())}
    return sorted(found, key=lambda c: (c == ALL, 0 if c == ALL else int(c)))
