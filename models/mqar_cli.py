"""The command `fwgen train mqar`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fwgen

from . import options

# Nothing here imports torch before a command runs: `fwgen list` stays quick.


def add_train(tasks: Any) -> argparse.ArgumentParser:
    parser = options.add_parser(
        tasks,
        "mqar",
        "multi-query associative recall: many pairs, then every key once more",
        """
Accuracy at the queries against the number of pairs, also past what was trained. --parts and --tests
are kinds of sequences as LENGTH:PAIRS, with a weight behind a second colon where training draws
some more often. Presets: tiny (seconds), small (minutes), published (vocabulary 8192, the mixture
of 4 to 64 pairs, tests up to 256 pairs: for GPUs; sequences are drawn anew instead of read 32
times).

  fwgen train mqar --rule gated_delta
  fwgen train mqar --rule linear_attention --parts 64:4,64:16 --tests 64:4,64:16,256:64
  fwgen plot runs/mqar -o mqar.png
""",
    )
    add = parser.add_argument
    add("--preset", default="small", metavar="NAME")
    model = parser.add_argument_group("the model")
    for name in ("layers", "heads", "d-model", "d-ff", "d-key", "d-value"):
        model.add_argument(f"--{name}", type=int, metavar="N")
    model.add_argument("--positions", metavar="KIND", help="none, sinusoidal or rotary")
    model.add_argument("--short-conv", type=int, metavar="TAPS", help="on queries, keys and values")
    model.add_argument("--out-norm", action="store_true", help="normalise each head's output")
    model.add_argument("--out-gate", action="store_true", help="gate each head's output")
    model.add_argument("--dropout", type=float, metavar="P")
    data = parser.add_argument_group("the sequences")
    data.add_argument("--vocab", type=int, metavar="N", help="half of it keys, half values")
    data.add_argument("--parts", metavar="T:P[:W],...", help="to train on")
    data.add_argument("--tests", metavar="T:P,...", help="to be judged by")
    data.add_argument("--power", type=float, metavar="A", help="of the gaps; 1: evenly spread")
    data.add_argument(
        "--random",
        action=argparse.BooleanOptionalAction,
        help="random tokens between the queries (default), or zeros",
    )
    data.add_argument("--batch", type=int, metavar="N")
    data.add_argument("--eval-batch", type=int, metavar="N", help="held-out sequences of a kind")
    options.add_rule(parser, "delta")
    options.add_training(parser)
    options.add_run(parser, "runs/mqar/RULE-PRESET-seedN")
    parser.set_defaults(action=_train)
    return parser


def _train(args: argparse.Namespace) -> int:
    from . import accuracies, mqar

    options.use_threads(args)
    preset = _preset(args)
    out = getattr(args, "out", None)
    if out is None:
        name = f"{options.slug(preset.model.attention.name)}-{args.preset}-seed{preset.run.seed}"
        out = Path("runs", "mqar", name)
    result = mqar.run(preset, out, resume=args.resume, overwrite=args.overwrite)
    print(accuracies.table([result]))
    print(out)
    if result["stopped"] == "interrupted":
        print("stopped; --resume goes on from here", file=sys.stderr)
        return 130
    return 0


def _preset(args: argparse.Namespace) -> Any:
    """The named preset with every option that was given."""
    from . import lm, mqar
    from .attention_config import AttentionConfig
    from .settings import TrainConfig, one_of

    one_of("preset", args.preset, tuple(mqar.PRESETS))
    preset = mqar.PRESETS[args.preset]
    shape = options.given(args, AttentionConfig) | options.rule_options(args)
    model = options.given(args, lm.LMConfig)
    model["attention"] = replace(preset.model.attention, **shape)
    run = options.given(args, mqar.MQARConfig)
    for option, name in (("parts", "train"), ("tests", "test")):
        if hasattr(args, option):
            run[name] = tuple(_part(f"--{option}", t) for t in getattr(args, option).split(","))
    return mqar.Preset(
        replace(preset.model, **model),
        replace(preset.run, **run),
        replace(preset.training, **options.given(args, TrainConfig)),
    )


def _part(option: str, text: str) -> Any:
    """LENGTH:PAIRS or LENGTH:PAIRS:WEIGHT."""
    from .mqar import Part

    words = text.split(":")
    if len(words) not in (2, 3):
        raise fwgen.ArgumentError(f"{option}: expected LENGTH:PAIRS, got {text!r}")
    length, pairs = (options.whole(option, word) for word in words[:2])
    return Part(length, pairs, *(options.number(option, word) for word in words[2:]))
