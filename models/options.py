"""Options that the model commands share. Nothing here imports torch: `fwgen list` stays quick.

An option that was not given is absent from the parsed arguments, so a config's own default, or a
preset's, stands; `given` collects those that are there, by the names of a config's fields.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import fwgen

Parser = argparse.ArgumentParser


def add_parser(commands: Any, name: str, summary: str, manual: str) -> Parser:
    """A command whose `--help` is `summary` and `manual` as written."""
    parser: Parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary}\n\n{manual.strip()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    return parser


def add_rule(parser: Parser, default: str) -> None:
    group = parser.add_argument_group("the rule")
    add = group.add_argument
    add("--rule", help=f"a path, a shipped rule or `softmax` (default {default})")
    add("--map", action="append", metavar="NAME=EXPR", help="phi='dpfp(x, nu=2)'; repeatable")
    add("--set", action="append", metavar="NAME=NUMBER", help="a constant of the rule; repeatable")
    add("--dim", action="append", metavar="NAME=SIZE", help="a dim such as M=64; repeatable")
    add(
        "--activation",
        action="append",
        metavar="INPUT=NAME",
        help="the range of an input: beta='2 sigmoid'; repeatable",
    )
    add("--redraw", type=int, metavar="N", help="draw random features anew every N-th sequence")
    add("--backend", help="auto, cpu, triton or reference")
    add("--form", help="auto, recurrent or chunk")


def add_training(parser: Parser) -> None:
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--steps", type=int, help="at most")
    add("--lr", type=float, help="learning rate")
    add("--schedule", metavar="NAME", help="constant, cosine or inverse-sqrt")
    add("--warmup", type=int, metavar="STEPS", help="in which the rate rises from zero")
    add("--weight-decay", type=float, metavar="X")
    add("--clip", type=float, metavar="NORM", help="of the gradient; 0: none")
    add("--accumulate", type=int, metavar="N", help="batches per step")
    add("--precision", metavar="NAME", help="float32, or autocast to bfloat16 or float16")
    add("--eval-every", type=int, metavar="STEPS")
    add("--checkpoint-every", type=int, metavar="STEPS")
    add("--log-every", type=int, metavar="STEPS")
    add("--patience", type=int, metavar="N", help="evaluations without a new best; 0: no limit")
    add("--stop-loss", type=float, metavar="LOSS", help="solved at this evaluation loss")


def add_run(parser: Parser, folder: str) -> None:
    group = parser.add_argument_group("the run")
    add = group.add_argument
    add("--seed", type=int)
    add_machine(group)
    add("--out", type=Path, metavar="FOLDER", help=f"of the run (default: {folder})")
    add("--resume", action="store_true", default=False, help="go on from the folder's checkpoint")
    add("--overwrite", action="store_true", default=False, help="replace the run in the folder")


def add_processes(parser: Parser, task: str) -> None:
    group = parser.add_argument_group(
        "several processes",
        f"`torchrun --nproc-per-node N -m fwgen train {task} ...` trains on N GPUs, or in N "
        "processes on CPUs, which share the rows of each batch",
    )
    group.add_argument(
        "--fsdp", action="store_true", default=False, help="part the weights as well (FSDP2)"
    )


def add_machine(parser: Any) -> None:
    parser.add_argument("--device", help="cpu (default) or cuda")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of PyTorch")


def given(args: argparse.Namespace, config: type) -> dict[str, Any]:
    """The options that were given, for the fields of a config with the same names."""
    return {f.name: getattr(args, f.name) for f in fields(config) if hasattr(args, f.name)}


def rule_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_rule` as fields of AttentionConfig."""
    found: dict[str, Any] = {}
    for name in ("rule", "redraw", "backend", "form"):
        if hasattr(args, name):
            found[name] = getattr(args, name)
    if hasattr(args, "map"):
        found["maps"] = pairs("--map", args.map)
    if hasattr(args, "set"):
        found["constants"] = {n: number("--set", v) for n, v in pairs("--set", args.set).items()}
    if hasattr(args, "dim"):
        found["sizes"] = {n: whole("--dim", v) for n, v in pairs("--dim", args.dim).items()}
    if hasattr(args, "activation"):
        found["activations"] = pairs("--activation", args.activation)
    return found


def use_threads(args: argparse.Namespace) -> None:
    import torch

    if args.threads < 0:
        raise fwgen.ArgumentError(f"--threads: expected at least 0, got {args.threads}")
    if args.threads:
        torch.set_num_threads(args.threads)


def pairs(option: str, items: Iterable[str]) -> dict[str, str]:
    """["phi=elu1(x)"] -> {"phi": "elu1(x)"}."""
    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise fwgen.ArgumentError(f"{option}: expected NAME=VALUE, got {item!r}")
        found[name.strip()] = value.strip()
    return found


def number(option: str, text: str) -> float:
    try:
        return int(text) if text.strip().lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise fwgen.ArgumentError(f"{option}: expected a number, got {text!r}") from None


def whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise fwgen.ArgumentError(f"{option}: expected a whole number, got {text!r}") from None


def windows(option: str, text: str) -> tuple[tuple[int, int], ...]:
    """ "2-20,40" -> ((2, 20), (40, 40))."""
    return tuple(window(option, part) for part in text.split(","))


def window(option: str, text: str) -> tuple[int, int]:
    """ "2-20" -> (2, 20), "20" -> (20, 20)."""
    low, dash, high = text.strip().partition("-")
    if not (low.isdecimal() and (high.isdecimal() if dash else True)):
        raise fwgen.ArgumentError(f"{option}: expected A-B, such as 2-20, got {text!r}")
    return int(low), int(high if dash else low)


def figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 100 else f"{value:,.1f}"


def slug(name: str) -> str:
    """A folder name: letters, digits and dashes."""
    text = "".join(c if c.isalnum() or c == "_" else "-" for c in name)
    return "-".join(part for part in text.split("-") if part)
