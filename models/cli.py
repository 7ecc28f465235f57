"""The commands `fwgen train`, `eval`, `generate`, `translate` and `plot`."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fwgen

from . import eval_cli, formal_cli, lm_cli, mqar_cli, nmt_cli, options, qa_cli

# Nothing here imports torch before a command runs: `fwgen list` stays quick.


def add_commands(commands: Any) -> None:
    """Add the model commands to the subparsers of `fwgen`; `args.run(args)` runs what was given."""
    train = commands.add_parser("train", help="train a model on compiled rules")
    tasks = train.add_subparsers(dest="task", required=True, metavar="TASK")
    for parser in (
        _add_retrieval(tasks),
        lm_cli.add_train(tasks),
        eval_cli.add_eval(commands),
        lm_cli.add_generate(commands),
        nmt_cli.add_train(tasks),
        formal_cli.add_train(tasks),
        qa_cli.add_train(tasks),
        mqar_cli.add_train(tasks),
        nmt_cli.add_translate(commands),
        _add_plot(commands),
    ):
        parser.set_defaults(run=run)


def _add_retrieval(tasks: Any) -> options.Parser:
    parser = options.add_parser(
        tasks,
        "retrieval",
        "associative retrieval: the synthetic task of the fast weight programmers paper",
        """
Setting 1: S pairs, every key once. Setting 2: 2S pairs, keys are re-assigned. The paper's sum rule
with attention normalisation is `linear_attention`, its FAVOR+ is `performer`, its fast weight
memory `fwm2`. The defaults are the paper's.

  fwgen train retrieval --rule delta --size 20 --setting 2
  fwgen train retrieval --rule performer --dim M=64 --size 20,40 --setting 1
""",
    )
    add = parser.add_argument
    add("--setting", type=int, choices=(1, 2))
    add("--size", default="20", metavar="S[,S...]", help="unique keys; several run in turn")
    add("--d-key", type=int)
    add("--batch", type=int)
    add("--eval-length", choices=("S", "2S"), help="decides when to stop (default S)")
    options.add_rule(parser, "delta")
    options.add_training(parser)
    options.add_run(parser, "runs/retrieval/...")
    parser.set_defaults(action=_retrieval)
    return parser


def _add_plot(commands: Any) -> options.Parser:
    plot = options.add_parser(
        commands,
        "plot",
        "draw the figures of finished runs",
        """
Runs of one task in one picture, and a table of them. The files that `fwgen eval --json` prints
show perplexity by the length of the context, beside the runs of the models.

  fwgen plot runs/retrieval -o retrieval.png
  fwgen plot runs/lm/prose -o lm.png
""",
    )
    plot.add_argument("results", nargs="+", type=Path, help="results.json or folders of them")
    plot.add_argument("-o", "--out", type=Path, default=Path("plot.png"))
    retrieval = plot.add_argument_group("retrieval")
    retrieval.add_argument("--kind", choices=("auto", "sizes", "curves"), default="auto")
    retrieval.add_argument("--which", choices=("last", "best"), default="last", help="evaluation")
    plot.set_defaults(action=_plot)
    return plot


def run(args: argparse.Namespace) -> int:
    """Run a model command: 0 fine, 2 wrong usage, 130 stopped by a signal.

    A faulty rule raises RuleError, which the `fwgen` command reports.
    """
    try:
        return int(args.action(args))
    except (fwgen.ArgumentError, OSError) as error:
        print(f"fwgen: error{_process()}: {error}", file=sys.stderr)
        return 2


def _process() -> str:
    """Which process of several speaks."""
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    return f" (process {rank} of {size})" if rank and size else ""


def _plot(args: argparse.Namespace) -> int:
    from . import accuracies, curves, figures, plot

    results = figures.load_results(args.results)
    if results[0]["task"] == "retrieval":
        plot.plot(results, args.out, args.which, args.kind)
        print(plot.table(results))
    elif results[0]["task"] in accuracies.TASKS:
        accuracies.plot(results, args.out)
        print(accuracies.table(results))
    else:
        curves.plot(results, args.out)
        print(curves.table(results))
    print(args.out)
    return 0


def _retrieval(args: argparse.Namespace) -> int:
    from . import plot, retrieval
    from .settings import TrainConfig

    options.use_threads(args)
    sizes = [options.whole("--size", size) for size in args.size.split(",")]
    asked = options.given(args, retrieval.RetrievalConfig) | options.rule_options(args)
    config = retrieval.RetrievalConfig(**{**asked, "size": sizes[0]})
    training = TrainConfig(**options.given(args, TrainConfig))
    results = []
    for size in sizes:
        one = replace(config, size=size)
        out = getattr(args, "out", None)
        if out is None:
            name = f"{options.slug(one.name)}-setting{one.setting}"
            out = Path("runs", "retrieval", name, f"S{size}-seed{one.seed}")
        elif len(sizes) > 1:
            out = out / f"S{size}-seed{one.seed}"
        # A run that stopped before its first checkpoint has nothing to go on from.
        there = (out / "checkpoint.safetensors").is_file()
        resume = args.resume and (len(sizes) == 1 or there)
        results.append(retrieval.run(one, training, out, resume=resume, overwrite=args.overwrite))
        print(f"{out}/results.json", file=sys.stderr)
        if results[-1]["stopped"] == "interrupted":
            print("stopped; --resume goes on from here", file=sys.stderr)
            return 130
    print(plot.table(results))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """These commands alone: `python -m fwgen.models.cli train retrieval ...`."""
    parser = argparse.ArgumentParser(prog="python -m fwgen.models.cli")
    add_commands(parser.add_subparsers(required=True))
    args: Any = parser.parse_args(arguments)
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
