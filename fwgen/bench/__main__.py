"""`python -m fwgen.bench`: measure the table of the documentation again (minutes)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from fwgen.bench import fixed
from fwgen.bench.machine import peak_flops
from fwgen.bench.page import write_page
from fwgen.bench.table import GOALS, measure, show
from fwgen.bench.timing import BUSY, Quiet


def main() -> int:
    """Print the table; exit 1 when a required ratio was missed on a quiet machine."""
    options = _options()
    goals = [
        goal
        for goal in GOALS
        if (options.rules is None or goal.rule in options.rules.split(","))
        and (options.tokens is None or goal.tokens == options.tokens)
    ]
    peak, how = peak_flops()
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    _say(f"{threads} threads, load {load:.1f}, peak {peak / 1e9:.0f} GFLOP/s ({how})")
    with Quiet() as quiet:
        results = list(measure(goals, options.rounds, not options.eager, _say))
        _say("fixed costs ...")
        narrowed = options.rules is not None or options.tokens is not None
        costs = [] if narrowed else list(fixed.costs())
    busy = quiet.others > BUSY
    if options.json:
        rows = [{**asdict(r.goal), "ms": 1e3 * r.mine.median, "peer": r.peer, "ratio": r.ratio,
                 "met": r.met} for r in results]  # fmt: skip
        fixed_costs = [{**asdict(c), "met": c.met} for c in costs]
        document = {"rows": rows, "fixed": fixed_costs, "peak_gflops": peak / 1e9}
        print(json.dumps({**document, "others": quiet.others}))
    else:
        show(results)
        if costs:
            fixed.show(costs)
    if options.page is not None and not busy:
        write_page(options.page, results, costs, peak)
    if busy:
        _say(f"others used {quiet.others:.2f} processors meanwhile: no verdict, and no page")
    met = all(r.met for r in results) and all(c.met for c in costs)
    return 0 if busy or met else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fwgen.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds (default: 7)")
    parser.add_argument("--rules", help="only these rules, separated by commas")
    parser.add_argument("--tokens", type=int, help="only this length")
    parser.add_argument("--eager", action="store_true", help="leave torch.compile out (minutes)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--page", type=Path, help="also write the tables to this Markdown file")
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
