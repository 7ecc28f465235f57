"""The commands `fwgen train` and `fwgen plot`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

# Nothing here imports torch before a command runs: `fwgen list` stays quick.


def add_commands(commands: Any) -> None:
    """Add `train` and `plot` to the subparsers of `fwgen`; `args.run(args)` runs what was given."""
    train = commands.add_parser("train", help="train a model on compiled rules")
    tasks = train.add_subparsers(dest="task", required=True, metavar="TASK")
    _add_retrieval(
        tasks.add_parser(
            "retrieval",
            help="associative retrieval: the synthetic task of the fast weight programmers paper",
            description="Setting 1: S pairs, every key once. Setting 2: 2S pairs, keys are "
            "re-assigned. RULE is a path, a shipped rule or `softmax`; the paper's sum rule with "
            "attention normalisation is `linear_attention`.",
        )
    )
    plot = commands.add_parser("plot", help="figures from results files")
    plot.add_argument("results", nargs="+", type=Path, help="results.json or folders of them")
    plot.add_argument("-o", "--out", type=Path, default=Path("retrieval.png"))
    plot.add_argument("--kind", choices=("auto", "sizes", "curves"), default="auto")
    plot.add_argument("--which", choices=("last", "best"), default="last", help="evaluation shown")
    plot.set_defaults(run=run, action=_plot)


def _add_retrieval(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rule", default="delta", metavar="RULE")
    add("--map", action="append", default=[], metavar="NAME=EXPR", help="phi='dpfp(x, nu=2)'")
    add("--set", action="append", default=[], metavar="NAME=NUMBER", help="a constant of the rule")
    add("--setting", type=int, choices=(1, 2), default=2)
    add("--size", default="20", metavar="S[,S...]", help="unique keys; several run in turn")
    add("--d-key", type=int, default=64)
    add("--eval-length", choices=("S", "2S"), default="S", help="decides when to stop (default S)")
    add("--steps", type=int, default=100_000, help="at most")
    add("--batch", type=int, default=32)
    add("--lr", type=float, default=1e-3)
    add("--seed", type=int, default=1)
    add("--patience", type=int, default=10, metavar="N", help="evaluations without a new best")
    add("--stop-loss", type=float, default=1e-3, metavar="LOSS")
    add("--eval-every", type=int, default=100, metavar="STEPS")
    add("--checkpoint-every", type=int, default=1000, metavar="STEPS")
    add("--dim", action="append", default=[], metavar="NAME=SIZE", help="a dim such as M=64")
    add("--activation", action="append", default=[], metavar="INPUT=NAME", help="beta='2 sigmoid'")
    add("--redraw", type=int, default=1, metavar="N", help="random features, every N-th call")
    add("--backend", default="auto")
    add("--form", default="auto")
    add("--device", default="cpu")
    add("--threads", type=int, default=0, metavar="N", help="of PyTorch; 1 is best for small S")
    add("--out", type=Path, help="folder of the run (default: runs/retrieval/...)")
    add("--resume", action="store_true", help="go on from the checkpoint in the folder")
    parser.set_defaults(run=run, action=_retrieval)


def run(args: argparse.Namespace) -> int:
    """Run `fwgen train` or `fwgen plot`: 0 fine, 2 wrong usage, 130 stopped by a signal.

    A faulty rule raises RuleError, which the `fwgen` command reports.
    """
    import fwgen

    try:
        return int(args.action(args))
    except (fwgen.ArgumentError, OSError) as error:
        print(f"fwgen: error: {error}", file=sys.stderr)
        return 2


def _plot(args: argparse.Namespace) -> int:
    from . import plot

    results = plot.load_results(args.results)
    plot.plot(results, args.out, args.which, args.kind)
    print(plot.table(results))
    print(args.out)
    return 0


def _retrieval(args: argparse.Namespace) -> int:
    import torch

    from . import plot, retrieval, train

    if args.threads > 0:
        torch.set_num_threads(args.threads)
    training = train.TrainConfig(
        args.steps, args.lr, args.eval_every, args.checkpoint_every, args.patience, args.stop_loss
    )
    sizes = [int(_number("--size", size)) for size in args.size.split(",")]
    config = retrieval.RetrievalConfig(
        rule=args.rule,
        maps=_pairs("--map", args.map),
        constants={n: _number("--set", v) for n, v in _pairs("--set", args.set).items()},
        setting=args.setting,
        size=sizes[0],
        d_key=args.d_key,
        eval_length=args.eval_length,
        batch=args.batch,
        seed=args.seed,
        sizes={n: int(_number("--dim", v)) for n, v in _pairs("--dim", args.dim).items()},
        activations=_pairs("--activation", args.activation),
        redraw=args.redraw,
        backend=args.backend,
        form=args.form,
        device=args.device,
    )
    results = []
    for size in sizes:
        one = replace(config, size=size)
        out = args.out or Path("runs", "retrieval", f"{_slug(one.name)}-setting{args.setting}")
        if not args.out or len(sizes) > 1:
            out = out / f"S{size}-seed{args.seed}"
        # A run that stopped before its first checkpoint has nothing to go on from.
        resume = args.resume and (len(sizes) == 1 or (out / "checkpoint.json").is_file())
        results.append(retrieval.run(one, training, out, resume))
        print(f"{out}/results.json", file=sys.stderr)
        if results[-1]["stopped"] == "interrupted":
            print("stopped; --resume goes on from here", file=sys.stderr)
            return 130
    print(plot.table(results))
    return 0


def _pairs(option: str, items: Iterable[str]) -> dict[str, str]:
    """["phi=elu1(x)"] -> {"phi": "elu1(x)"}."""
    import fwgen

    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise fwgen.ArgumentError(f"{option}: expected NAME=VALUE, got {item!r}")
        pairs[name.strip()] = value.strip()
    return pairs


def _number(option: str, text: str) -> float:
    import fwgen

    try:
        return int(text) if text.strip().lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise fwgen.ArgumentError(f"{option}: expected a number, got {text!r}") from None


def _slug(name: str) -> str:
    """A folder name: letters, digits and dashes."""
    text = "".join(c if c.isalnum() or c == "_" else "-" for c in name)
    return "-".join(part for part in text.split("-") if part)


def main(arguments: list[str] | None = None) -> int:
    """The two commands alone: `python -m fwgen.models.cli train retrieval ...`."""
    parser = argparse.ArgumentParser(prog="python -m fwgen.models.cli")
    add_commands(parser.add_subparsers(required=True))
    args: Any = parser.parse_args(arguments)
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
