"""The command `fwgen train formal`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import options

# Nothing here imports torch before a command runs: `fwgen list` stays quick.


def add_train(tasks: Any) -> argparse.ArgumentParser:
    parser = options.add_parser(
        tasks,
        "formal",
        "formal languages and algorithms, judged on longer strings than trained on",
        """
Languages: parity, aa, abab, anbn, anbncn, dyck1, shuffle2, reset-dyck1; modular (arithmetic modulo
5), s3 and s5 (products of permutations); code-2, code-3, code-5 (programs of so many variables) and
listops. At each symbol the model tells what follows from those before; a string is right when all
its answers are. Training stops when every held-out string is right.

--setup gives sizes and strings of each language: small (minutes on two cores) or full (as
published). --lengths, --longer and --strings change them.

  fwgen train formal --language parity --rule delta
  fwgen train formal --language parity --rule delta --activation beta='2 sigmoid'
  fwgen train formal --language dyck1 --rule sum --lengths 2-20 --longer 22-40,42-80
  fwgen train formal --language code-3 --setup full --rule delta_rnn --layers 4 --d-model 256 \\
      --d-ff 1024 --heads 16 --dropout 0.1 --lr 3e-4 --steps 30000
""",
    )
    add = parser.add_argument
    add("--language", required=True, metavar="NAME")
    add("--setup", default="small", metavar="NAME", help="small (default) or full")
    add("--lengths", metavar="A-B", help="of strings to train on")
    add("--longer", metavar="A-B[,A-B]", help="bins of longer strings to be judged on")
    add("--strings", type=int, metavar="N", help="distinct ones for training; 0: always fresh ones")
    add("--batch", type=int, metavar="N", help="strings")
    add("--eval-strings", type=int, metavar="N", help="of each bin")
    model = parser.add_argument_group("the model")
    for name in ("layers", "heads", "d-model", "d-ff", "d-key", "d-value"):
        model.add_argument(f"--{name}", type=int, metavar="N")
    model.add_argument("--norm", metavar="WHERE", help="pre or post")
    model.add_argument("--positions", metavar="KIND", help="none, sinusoidal or rotary")
    model.add_argument("--dropout", type=float, metavar="P")
    model.add_argument("--short-conv", type=int, metavar="TAPS", help="on queries, keys and values")
    options.add_rule(parser, "delta")
    options.add_training(parser)
    options.add_run(parser, "runs/formal/LANGUAGE/RULE-seedN")
    parser.add_argument("--no-tensorboard", action="store_true", default=False)
    parser.set_defaults(action=_train)
    return parser


def _train(args: argparse.Namespace) -> int:
    from . import formal
    from .settings import TrainConfig

    options.use_threads(args)
    config = _config(args)
    out = getattr(args, "out", None)
    if out is None:
        name = f"{options.slug(_name(config))}-seed{config.seed}"
        out = Path("runs", "formal", config.language, name)
    result = formal.run(
        config,
        replace(formal.TRAINING, **options.given(args, TrainConfig)),
        out,
        resume=args.resume,
        overwrite=args.overwrite,
        tensorboard=not args.no_tensorboard,
    )
    last = result["last"] or {}
    bins = [name for name in last if name.startswith("accuracy_")]
    scores = ", ".join(f"{last[name]:.3f} ({name.removeprefix('accuracy_')})" for name in bins)
    print(
        f"{result['name']} on {config.language}: {result['steps']} steps ({result['stopped']}), "
        f"{result['parameters']:,} parameters, {result['tokens_per_second']:,} symbols/s, "
        f"right strings {scores or '-'}"
    )
    print(out)
    if result["stopped"] == "interrupted":
        print("stopped; --resume goes on from here", file=sys.stderr)
        return 130
    return 0


def _config(args: argparse.Namespace) -> Any:
    """The setup of the language with every option that was given."""
    from . import formal
    from .attention_config import AttentionConfig
    from .lm import LMConfig

    found = formal.preset(args.language, args.setup)
    asked = options.given(args, formal.FormalConfig)
    if "lengths" in asked:
        asked["lengths"] = options.window("--lengths", asked["lengths"])
    if "longer" in asked:
        asked["longer"] = options.windows("--longer", asked["longer"])
    attention = options.given(args, AttentionConfig) | options.rule_options(args)
    model = options.given(args, LMConfig)
    model["attention"] = replace(found.model.attention, **attention)
    return replace(found, **asked, model=replace(found.model, **model))


def _name(config: Any) -> str:
    """The rule, and the ranges that were asked for: runs with and without them are not the same."""
    attention = config.model.attention
    return " ".join([attention.name, *(f"{n} {a}" for n, a in attention.activations.items())])
