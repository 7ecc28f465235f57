"""The commands `fwgen train nmt` and `fwgen translate`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import fwgen

from . import options

# Nothing here imports torch before a command runs: `fwgen list` stays quick.


def add_train(tasks: Any) -> argparse.ArgumentParser:
    parser = options.add_parser(
        tasks,
        "nmt",
        "a translator, from parallel text",
        """
--data is a folder with train.en and train.de, a pair per line number, and so on for valid and test
(WMT style; any two languages), or the word `numbers` for the built-in number words, English to
German. --rule is the decoder's causal self-attention. --encoder reads the source in both
directions, --cross is what the target reads of it: softmax, or a rule whose state after the source
is a memory of fixed size; `same` is the rule of --rule.

--preset fixes model and training; every option changes a part of it. Presets: tiny (seconds),
small (minutes on two cores), base, wmt (the base Transformer).

  fwgen train nmt --data numbers --rule delta --preset tiny
  python -m fwgen.models.data.parallel ende data/ende
  fwgen train nmt --data data/ende --rule delta --cross same
  fwgen translate runs/nmt/ende/delta-small-seed1 --split test
""",
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="PATH", help="a corpus")
    add("--source", metavar="ENDING", help="of the source files (default: en)")
    add("--target", metavar="ENDING", help="of the target files (default: the other one)")
    add("--preset", default="small", metavar="NAME")
    model = parser.add_argument_group("the model")
    model.add_argument("--encoder", metavar="RULE", help="softmax (default), `same`, or a rule")
    model.add_argument("--cross", metavar="RULE", help="softmax (default), `same`, or a rule")
    for name in ("encoder-layers", "decoder-layers", "heads", "d-model", "d-ff"):
        model.add_argument(f"--{name}", type=int, metavar="N")
    model.add_argument("--norm", metavar="WHERE", help="pre or post")
    model.add_argument("--positions", metavar="KIND", help="none or sinusoidal")
    model.add_argument("--dropout", type=float, metavar="P")
    text = parser.add_argument_group("the text")
    text.add_argument("--tokenizer", metavar="KIND", help="bytes, bpe or words")
    text.add_argument("--vocab", type=int, metavar="N", help="of the bpe")
    text.add_argument("--batch-tokens", type=int, metavar="N", help="padding included")
    text.add_argument("--longest", type=int, metavar="N", help="tokens of a pair to train on")
    text.add_argument("--smoothing", type=float, metavar="X", help="of the labels")
    options.add_rule(parser, "delta")
    options.add_training(parser)
    options.add_run(parser, "runs/nmt/DATA/RULE-PRESET-seedN")
    options.add_processes(parser, "nmt")
    parser.add_argument("--no-tensorboard", action="store_true", default=False)
    parser.set_defaults(action=_train)
    return parser


def _train(args: argparse.Namespace) -> int:
    from . import distributed, nmt_task

    options.use_threads(args)
    preset = _preset(args)
    out = getattr(args, "out", None)
    if out is None:
        name = f"{options.slug(preset.model.name)}-{args.preset}-seed{preset.run.seed}"
        out = Path("runs", "nmt", options.slug(args.data.stem), name)
    with distributed.joined(preset.run.device) as world:
        result = nmt_task.run(
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
        f"validation perplexity {options.figure(last.get('perplexity'))}, "
        f"token accuracy {options.figure(last.get('accuracy'))}"
    )
    print(out)
    if result["stopped"] == "interrupted":
        print("stopped; --resume goes on from here", file=sys.stderr)


def _preset(args: argparse.Namespace) -> Any:
    """The named preset with every option that was given."""
    from . import nmt, nmt_task
    from .attention_config import AttentionConfig
    from .settings import TrainConfig, one_of

    one_of("preset", args.preset, tuple(nmt_task.PRESETS))
    preset = nmt_task.PRESETS[args.preset]
    shape = options.given(args, AttentionConfig) | options.rule_options(args)
    model = options.given(args, nmt.NMTConfig)
    decoder = replace(preset.model.attention, **shape)
    model["attention"] = decoder
    # What another rule has in common with the decoder's.
    common = {n: shape[n] for n in ("heads", "sizes", "redraw", "backend", "form") if n in shape}
    for name in ("encoder", "cross"):
        asked = model.get(name, getattr(preset.model, name).rule)
        own = replace(getattr(preset.model, name), rule=asked, **common)
        model[name] = decoder if asked == "same" else own
    run = options.given(args, nmt_task.NMTRunConfig)
    return nmt_task.Preset(
        replace(preset.model, **model),
        replace(preset.run, **run),
        replace(preset.training, **options.given(args, TrainConfig)),
    )


def add_translate(commands: Any) -> argparse.ArgumentParser:
    parser = options.add_parser(
        commands,
        "translate",
        "translate lines with a trained translator",
        """
RUN is a run's folder (its best model) or a checkpoint, which holds all that is needed. Each line of
standard input becomes a line of standard output; --split translates a part of the corpus instead
and prints its BLEU, with sacreBLEU's signature, last.

  echo "three hundred twenty-one" | fwgen translate runs/nmt/numbers/delta-tiny-seed1
  fwgen translate runs/nmt/ende/delta-small-seed1 --split test --beam 5
""",
    )
    add = parser.add_argument
    add("run_path", metavar="RUN", type=Path)
    add("--beam", type=int, metavar="K", help="hypotheses that go on (default 4); 1: greedy")
    add("--alpha", type=float, metavar="X", help="length normalisation (default 0.6); 0: none")
    add("--batch-tokens", type=int, metavar="N", help="that are computed at once")
    add("--lines", type=int, default=512, metavar="N", help="of input that are read at once")
    add("--split", metavar="NAME", help="train, valid or test instead of standard input")
    add("--data", type=Path, metavar="PATH", help="a corpus (default: that of the training)")
    add("--json", action="store_true", default=False)
    options.add_machine(parser)
    parser.set_defaults(action=_translate)
    return parser


def _translate(args: argparse.Namespace) -> int:
    from . import nmt_eval
    from .beam import BeamConfig
    from .data.pairs import read_pairs
    from .settings import at_least

    options.use_threads(args)
    at_least("lines", args.lines, 1)
    config = BeamConfig(**options.given(args, BeamConfig))
    found = nmt_eval.load(args.run_path, getattr(args, "device", "cpu"))
    references = None
    if hasattr(args, "split"):
        sides = read_pairs(getattr(args, "data", found.data), args.split, found.languages)
        source, references = sides
        blocks = iter([source[i : i + args.lines] for i in range(0, len(source), args.lines)])
    else:
        blocks = _blocks(1 if sys.stdin.isatty() else args.lines)
    translations = []
    for block in blocks:
        translations += (new := found.translate(block, config))
        if not args.json:
            print("\n".join(new), flush=True)
    score = nmt_eval.bleu(translations, references) if references is not None else {}
    if args.json:
        print(json.dumps({**score, "translations": translations}, ensure_ascii=False))
    elif score:
        print(f"BLEU {score['bleu']:.2f} {score['signature']}, {score['exact']:.1%} exact")
    return 0


def _blocks(lines: int) -> Iterator[list[str]]:
    """Standard input, some lines at a time."""
    number = 0
    while block := list(islice(sys.stdin.buffer, lines)):
        texts = []
        for raw in block:
            number += 1
            try:
                texts.append(raw.decode("utf-8").rstrip("\r\n"))
            except UnicodeDecodeError as error:
                raise fwgen.ArgumentError(
                    f"standard input, line {number}: not UTF-8 text: {error}"
                ) from None
        yield texts
