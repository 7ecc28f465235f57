"""The command `fwgen eval`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fwgen

from . import options

# Nothing here imports torch before a command runs: `fwgen list` stays quick.

LM = ("context", "stride", "segment", "batch", "tokens")  # options of one task alone
FORMAL = ("lengths", "strings")
TEXT = ("data", "split")
OPTIONS = {"lm": (*TEXT, *LM), "nmt": TEXT, "formal": FORMAL}


def add_eval(commands: Any) -> argparse.ArgumentParser:
    parser = options.add_parser(
        commands,
        "eval",
        "judge a trained language model, translator or model of a formal language",
        """
RUN is a run's folder (its best model) or a checkpoint, which holds all that is needed.

Language models: perplexity. --context tells how many tokens the state may reach back, 0 for the
whole text; several make a table. Translators: loss, perplexity and accuracy of target tokens given
those before (`fwgen translate --split` gives the BLEU). Formal languages: the part of right
strings by length, of those that were held out in the training or of other --lengths.

  fwgen eval runs/lm/prose/delta-small-seed1 --split test
  fwgen eval runs/lm/prose/delta-small-seed1 --context 64,256,1024,0
  fwgen eval runs/lm/wt103/softmax --context 256 --stride 1   # the sliding window of the paper
  fwgen eval runs/nmt/ende/delta-small-seed1 --split test
  fwgen eval runs/formal/parity/delta-seed1 --lengths 100-200,400
""",
    )
    add = parser.add_argument
    add("run_path", metavar="RUN", type=Path)
    add("--json", action="store_true", default=False)
    text = parser.add_argument_group("language models and translators")
    text.add_argument(
        "--data", type=Path, metavar="PATH", help="a corpus (default: the training's)"
    )
    text.add_argument("--split", help="train, valid (default) or test")
    lm = parser.add_argument_group("language models")
    lm.add_argument("--context", metavar="N[,N...]", help="tokens (default: as it was trained)")
    lm.add_argument("--stride", type=int, metavar="N", help="overlapping windows; N tokens count")
    lm.add_argument("--segment", type=int, metavar="N", help="tokens that are computed at once")
    lm.add_argument("--batch", type=int, metavar="N", help="streams that the text is cut into")
    lm.add_argument("--tokens", type=int, metavar="N", help="at most; 0: all")
    formal = parser.add_argument_group("formal languages")
    formal.add_argument("--lengths", metavar="A-B[,A-B]", help="of the strings")
    formal.add_argument("--strings", type=int, metavar="N", help="of each range of lengths")
    options.add_machine(parser)
    parser.set_defaults(action=_eval)
    return parser


def _eval(args: argparse.Namespace) -> int:
    from . import checkpoint

    options.use_threads(args)
    task = checkpoint.read(args.run_path).run["about"]["task"]
    if task not in OPTIONS:
        raise fwgen.ArgumentError(
            f"checkpoint: expected one of the tasks {', '.join(OPTIONS)}, "
            f"{args.run_path} is of the task {task}"
        )
    for name in (*TEXT, *LM, *FORMAL):
        if hasattr(args, name) and name not in OPTIONS[task]:
            raise fwgen.ArgumentError(f"--{name}: {args.run_path} is of the task {task}")
    about, rows = {"lm": _lm, "nmt": _nmt, "formal": _formal}[task](args)
    found = []
    for row in rows:
        found.append(row)
        if not args.json:
            _print_row(row, first=len(found) == 1)
    if args.json:
        document = {"task": task, "run": str(args.run_path), **about, "rows": found}
        print(json.dumps(document, indent=2))
    return 0


Judged = tuple[dict[str, Any], Iterator[dict[str, Any]]]  # what was judged, and how it was found


def _lm(args: argparse.Namespace) -> Judged:
    from . import lm_eval
    from .data.text import read_split

    device, split = getattr(args, "device", "cpu"), getattr(args, "split", "valid")
    found = lm_eval.load(args.run_path, device)
    tokens = found.tokenizer.encode(read_split(getattr(args, "data", found.data), split))
    if getattr(args, "tokens", 0):
        tokens = tokens[: args.tokens + 1]
    segment, stride = getattr(args, "segment", found.segment), getattr(args, "stride", 0)
    default = "0" if found.carry else str(found.segment)
    contexts = [options.whole("--context", c) for c in getattr(args, "context", default).split(",")]

    def rows() -> Iterator[dict[str, Any]]:
        for context in contexts:
            how = lm_eval.EvalConfig(segment, context, stride, getattr(args, "batch", 1))
            figures = lm_eval.evaluate(found.model, found.tokenizer, tokens, how, device)
            yield {"context": context, "stride": stride, **figures}

    return {"name": found.name, "split": split, "step": found.step}, rows()


def _nmt(args: argparse.Namespace) -> Judged:
    from . import nmt_eval

    device, split = getattr(args, "device", "cpu"), getattr(args, "split", "valid")
    found = nmt_eval.load(args.run_path, device)
    figures = found.judge(getattr(args, "data", found.data), split, device)
    return {"name": found.name, "split": split, "step": found.step}, iter([figures])


def _formal(args: argparse.Namespace) -> Judged:
    from . import formal_eval

    device = getattr(args, "device", "cpu")
    found = formal_eval.load(args.run_path, device)
    windows = options.windows("--lengths", args.lengths) if hasattr(args, "lengths") else ()
    figures = formal_eval.evaluate(found, windows, getattr(args, "strings", 0), device)
    about = {"name": found.name, "language": found.language, "step": found.step}
    return about, iter([figures])


SHOWN = ("context", "loss", "perplexity", "word_perplexity", "bits_per_byte", "accuracy")


def _print_row(row: dict[str, Any], first: bool) -> None:
    names = [name for name in row if name in SHOWN or name.startswith("accuracy_")]
    if first:
        heads = (name.removeprefix("accuracy_").replace("_", " ") for name in names)
        print("  ".join(head.rjust(15) for head in heads))
    cells = (str(row[n] or "all") if n == "context" else options.figure(row[n]) for n in names)
    print("  ".join(cell.rjust(15) for cell in cells), flush=True)
