"""The command `fwgen train qa`."""

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
        "qa",
        "questions about documents, answered from a memory of fixed size",
        """
A GRU reads document and question (de Brebisson and Vincent 2016). --rule is what a question looks
up: `none` (the GRU's last state), `cheap_linear` and `gated_cheap_linear` (the paper's memories of
fixed size), `softmax` (all states), or any other rule over projections of the states.

--data is the word `cloze` for synthetic documents, or a folder with train.title and train.body, a
page per line number, and so on for valid: which page has this title? The paper's sizes are
--d-model 100 --d-embed 100.

  fwgen train qa --rule gated_cheap_linear
  python -m fwgen.models.data.pages data/pages
  fwgen train qa --data data/pages --rule cheap_linear --d-model 64 --d-embed 64
  python -m fwgen.models.qa_cost            # what a look-up costs, by the document's length
""",
    )
    add = parser.add_argument
    add("--data", type=Path, default=Path("cloze"), metavar="PATH", help="cloze, or pages")
    model = parser.add_argument_group("the model")
    model.add_argument("--d-model", type=int, metavar="N", help="size of a state of the GRU")
    model.add_argument("--d-embed", type=int, metavar="N")
    model.add_argument("--dropout", type=float, metavar="P")
    feed = parser.add_argument_group("the documents")
    feed.add_argument("--batch", type=int, metavar="N")
    feed.add_argument("--eval-batch", type=int, metavar="N", help="held-out documents, at most")
    cloze = parser.add_argument_group("cloze documents")
    cloze.add_argument("--statements", type=int, metavar="N", help="of a document")
    cloze.add_argument("--gap", type=int, metavar="N", help="most words between two statements")
    cloze.add_argument("--entities", type=int, metavar="N")
    cloze.add_argument("--verbs", type=int, metavar="N")
    cloze.add_argument("--fillers", type=int, metavar="N", help="words that say nothing")
    pages = parser.add_argument_group("pages")
    pages.add_argument("--tokenizer", metavar="KIND", help="bytes, bpe or words")
    pages.add_argument("--vocab", type=int, metavar="N", help="of the bpe")
    pages.add_argument("--longest", type=int, metavar="N", help="tokens of a page that are read")
    options.add_rule(parser, "gated_cheap_linear")
    options.add_training(parser)
    options.add_run(parser, "runs/qa/DATA/RULE-seedN")
    parser.set_defaults(action=_train)
    return parser


def _train(args: argparse.Namespace) -> int:
    from . import qa_task

    options.use_threads(args)
    asked = _asked(args)
    out = getattr(args, "out", None)
    if out is None:
        name = f"{options.slug(asked.model.attention.name)}-seed{asked.run.seed}"
        out = Path("runs", "qa", options.slug(args.data.stem), name)
    result = qa_task.run(args.data, asked, out, resume=args.resume, overwrite=args.overwrite)
    last = result["last"] or {}
    print(
        f"{result['name']}: {result['steps']} steps ({result['stopped']}), "
        f"{result['parameters']:,} parameters, accuracy {_figure(last.get('accuracy'))}, "
        f"loss {_figure(last.get('loss'))}"
    )
    print(out)
    if result["stopped"] == "interrupted":
        print("stopped; --resume goes on from here", file=sys.stderr)
        return 130
    return 0


def _asked(args: argparse.Namespace) -> Any:
    """The default run with every option that was given."""
    from .attention_config import AttentionConfig
    from .data.cloze import ClozeConfig
    from .qa import QAConfig
    from .qa_task import QARun, QARunConfig
    from .settings import TrainConfig

    default = QARun()
    shape = options.given(args, AttentionConfig) | options.rule_options(args)
    model = options.given(args, QAConfig)
    model.pop("vocab", None)  # the option is the tokenizer's; the model takes what that has
    model["attention"] = replace(default.model.attention, **shape)
    return QARun(
        replace(default.model, **model),
        replace(default.run, **options.given(args, QARunConfig)),
        replace(default.cloze, **options.given(args, ClozeConfig)),
        replace(default.training, **options.given(args, TrainConfig)),
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
