"""The commands `fwgen train lm` and `fwgen generate`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import options

# Nothing here imports torch before a command runs: `fwgen list` stays quick.


def add_train(tasks: Any) -> argparse.ArgumentParser:
    parser = options.add_parser(
        tasks,
        "lm",
        "a language model, from text",
        """
--data is a folder with train.txt, valid.txt and test.txt, or with WikiText's wiki.train.tokens and
so on, or one text file. --preset fixes model and training; every option changes a part of it.
Presets: tiny (seconds), small (minutes on two cores), base, wt103-small and wt103-medium (the paper
of 2021; --data is then WikiText-103).

  python -m fwgen.models.data.prose data/prose
  fwgen train lm --data data/prose --rule gated_delta --preset small
  fwgen train lm --data data/prose --rule softmax --preset small --positions rotary
  fwgen eval runs/lm/prose/gated_delta-small-seed1
""",
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="PATH", help="a corpus")
    add("--preset", default="small", metavar="NAME")
    model = parser.add_argument_group("the model")
    for name in ("layers", "heads", "d-model", "d-ff", "d-key", "d-value"):
        model.add_argument(f"--{name}", type=int, metavar="N")
    model.add_argument("--norm", metavar="WHERE", help="pre or post")
    model.add_argument("--positions", metavar="KIND", help="none, sinusoidal or rotary")
    model.add_argument(
        "--feed", metavar="NAME", help="activation of the feed-forward layer: gelu or relu"
    )
    model.add_argument("--output", metavar="KIND", help="tied, untied or adaptive softmax")
    model.add_argument("--cutoffs", metavar="N,N", help="of the adaptive softmax")
    model.add_argument("--dropout", type=float, metavar="P")
    model.add_argument("--short-conv", type=int, metavar="TAPS", help="on queries, keys and values")
    model.add_argument("--out-norm", action="store_true", help="normalise each head's output")
    model.add_argument("--out-gate", action="store_true", help="gate each head's output")
    model.add_argument("--window", type=int, metavar="N", help="softmax: tokens that are kept")
    text = parser.add_argument_group("the text")
    text.add_argument("--tokenizer", metavar="KIND", help="bytes, bpe or words")
    text.add_argument("--vocab", type=int, metavar="N", help="of the bpe")
    text.add_argument("--batch", type=int, metavar="N", help="contiguous streams")
    text.add_argument("--segment", type=int, metavar="N", help="tokens; gradients end there")
    text.add_argument(
        "--carry",
        action=argparse.BooleanOptionalAction,
        help="the state goes on into the next segment",
    )
    text.add_argument("--eval-batch", type=int, metavar="N")
    text.add_argument("--eval-tokens", type=int, metavar="N", help="at most; 0: all")
    options.add_rule(parser, "delta")
    options.add_training(parser)
    options.add_run(parser, "runs/lm/DATA/RULE-PRESET-seedN")
    options.add_processes(parser, "lm")
    parser.add_argument("--no-tensorboard", action="store_true", default=False)
    parser.set_defaults(action=_train)
    return parser


def _train(args: argparse.Namespace) -> int:
    from . import distributed, lm_task

    options.use_threads(args)
    preset = _preset(args)
    out = getattr(args, "out", None)
    if out is None:
        name = f"{options.slug(preset.model.attention.name)}-{args.preset}-seed{preset.run.seed}"
        out = Path("runs", "lm", options.slug(args.data.stem), name)
    with distributed.joined(preset.run.device) as world:
        result = lm_task.run(
            args.data,
            preset,
            out,
            resume=args.resume,
            overwrite=args.overwrite,
            tensorboard=not args.no_tensorboard,
            fsdp=args.fsdp,
        )
    if world.first:
        _tell(result, out)
    return 130 if result["stopped"] == "interrupted" else 0


def _tell(result: dict[str, Any], out: Path) -> None:
    last = result["last"] or {}
    print(
        f"{result['name']}: {result['steps']} steps ({result['stopped']}), "
        f"{result['parameters']:,} parameters, {result['tokens_per_second']:,} tokens/s, "
        f"validation perplexity {options.figure(last.get('perplexity'))} per token, "
        f"{options.figure(last.get('word_perplexity'))} per word"
    )
    print(out)
    if result["stopped"] == "interrupted":
        print("stopped; --resume goes on from here", file=sys.stderr)


def _preset(args: argparse.Namespace) -> Any:
    """The named preset with every option that was given."""
    from . import lm, lm_task
    from .attention_config import AttentionConfig
    from .settings import TrainConfig, one_of

    one_of("preset", args.preset, tuple(lm_task.PRESETS))
    preset = lm_task.PRESETS[args.preset]
    attention = options.given(args, AttentionConfig) | options.rule_options(args)
    model = options.given(args, lm.LMConfig)
    model.pop("vocab", None)  # the option is the tokenizer's; the model takes what that has
    if "cutoffs" in model:
        parts = model["cutoffs"].split(",")
        model["cutoffs"] = tuple(options.whole("--cutoffs", part) for part in parts)
    model["attention"] = replace(preset.model.attention, **attention)
    run = options.given(args, lm_task.LMRunConfig)
    return lm_task.Preset(
        replace(preset.model, **model),
        replace(preset.run, **run),
        replace(preset.training, **options.given(args, TrainConfig)),
    )


def add_generate(commands: Any) -> argparse.ArgumentParser:
    parser = options.add_parser(
        commands,
        "generate",
        "write text with a trained language model",
        """
The text appears as it is drawn. With a rule every token takes the same time and memory, however
long the text. Several prompts, or --count, are computed as one batch.

  fwgen generate runs/lm/prose/delta-small-seed1 --prompt "It is a truth" --tokens 300
  fwgen generate runs/lm/prose/delta-small-seed1 --temperature 0.8 --top-p 0.95 --count 4
""",
    )
    add = parser.add_argument
    add("run_path", metavar="RUN", type=Path)
    add("--prompt", action="append", default=None, metavar="TEXT", help="repeatable")
    add("--count", type=int, default=1, metavar="N", help="texts per prompt")
    add("--tokens", type=int, metavar="N", help="new ones (default 200)")
    add("--temperature", type=float, metavar="X", help="0: always the most probable")
    add("--top-k", type=int, metavar="K")
    add("--top-p", type=float, metavar="P")
    add("--seed", type=int)
    add("--json", action="store_true", default=False)
    options.add_machine(parser)
    parser.set_defaults(action=_generate)
    return parser


def _generate(args: argparse.Namespace) -> int:
    from . import generate, lm_eval
    from .settings import at_least

    options.use_threads(args)
    at_least("count", args.count, 1)
    sampling = generate.SamplingConfig(**options.given(args, generate.SamplingConfig))
    found = lm_eval.load(args.run_path, getattr(args, "device", "cpu"))
    prompts = [prompt for prompt in args.prompt or ["\n"] for _ in range(args.count)]
    coded = [found.tokenizer.encode(prompt or "\n").tolist() for prompt in prompts]
    printers = [generate.Printer(found.tokenizer) for _ in prompts]
    texts = list(prompts)
    shown = len(prompts) == 1 and not args.json
    if shown:
        print(texts[0].lstrip("\n"), end="", flush=True)
    for drawn in generate.generate(found.model, coded, sampling):
        for i, token in enumerate(drawn):
            text = printers[i].add(token) if token is not None else ""
            texts[i] += text
            if shown:
                print(text, end="", flush=True)
    texts = [text + printer.end() for text, printer in zip(texts, printers, strict=True)]
    if args.json:
        print(json.dumps({"sampling": asdict(sampling), "texts": texts}, indent=2))
    elif shown:
        print()
    else:
        for i, text in enumerate(texts):
            print(f"--- {i + 1}\n{text.strip()}")
    return 0
