"""The measured tables as a page of the documentation."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from fwgen.bench.fixed import Cost
from fwgen.bench.table import B, D, H, Result

HEAD = """\
# Speed on CPU

Written by `python -m fwgen.bench --page docs/speed.md`, which measures it again (`make bench`
prints the same tables). All contenders of a group of rows run interleaved in one process on a
machine that does nothing else; times are medians of calls through the public operator, with fresh
results. F is the forward, F+B forward and backward with all input gradients. Only the ratios carry
over to other machines.

* `chunk 32`, `chunk 64`: the chunkwise form of the rule in eager PyTorch, `compiled` under
  `torch.compile`; the best of them counts.
* `softmax`: causal `scaled_dot_product_attention` of PyTorch. `loop`: a token loop in PyTorch.
* `peak`: the machine's multiply-add limit, measured in the same run, against the fewest operations
  that the mathematics needs (6 d^2 and 20 d^2 per token and head for the delta rule).
"""


def write_page(path: Path, results: Sequence[Result], costs: Sequence[Cost], peak: float) -> None:
    """Write the page; `peak` in FLOP/s."""
    machine = (
        f"Machine: {_processor()}, {torch.get_num_threads()} threads, multiply-add peak "
        f"{peak / 1e9:.0f} GFLOP/s; PyTorch {torch.__version__.split('+')[0]}. "
        f"B = {B}, H = {H}, K = V = {D}, float32."
    )
    rows = [
        "| rule | T | pass | ms | against | ms | ratio | aim |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [_row(r) for r in results]
    fixed = ["| deltanet, K = V = 64, B = H = 1 | measured | at most |", "|---|---|---|"]
    fixed += [
        f"| {c.what} | {c.value:.2f} {c.unit}{_mark(c.met)} | {c.most:g} {c.unit} |" for c in costs
    ]
    text = "\n".join([HEAD, machine, "", *rows, "", "## Fixed costs", "", *fixed])
    path.write_text(text + "\n", encoding="utf-8")


def _row(r: Result) -> str:
    goal = r.goal
    theirs = f"{1e3 * r.theirs.median:.1f}" if r.theirs else ""
    name = "F+B" if goal.backward else "F"
    mine = f"{1e3 * r.mine.median:.2f}"
    ratio = f"{r.ratio:.2f}{_mark(r.met)}"
    return (
        f"| {goal.rule} | {goal.tokens} | {name} | {mine} | {r.peer} | {theirs} | {ratio} "
        f"| {goal.least:g} |"
    )


def _mark(met: bool) -> str:
    return "" if met else " (missed)"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model} ({torch.backends.cpu.get_cpu_capability()})"
