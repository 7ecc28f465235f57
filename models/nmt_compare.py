"""Translators side by side: the same training, test BLEU, a table.

    python -m fwgen.models.data.parallel ende data/ende
    python -m fwgen.models.data.parallel enes data/enes
    python -m fwgen.models.nmt_compare data/ende data/enes --minutes 40 --threads 2

All models of a corpus train for the same number of steps. --minutes is what the training of all of
them may take together: every model takes a few steps first, which tells how many there can be.
Stopped runs go on where they were when the command is repeated. `results.md` and `results.csv` lie
in the folder of the runs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import fwgen

from . import checkpoint
from .attention_config import SOFTMAX, AttentionConfig
from .beam import BeamConfig
from .data.pairs import read_pairs
from .data.text import Tokenizer
from .log import write_csv
from .nmt_eval import bleu, load
from .nmt_task import PRESETS, NMTTask, Preset, run
from .settings import at_least, one_of

TRIED = 6  # steps per model that tell how long one takes; the first of them is left out
BUCKETS = ((1, 5), (6, 12), (13, 25), (26, math.inf))  # source words


@dataclass(frozen=True)
class Row:
    """A model of the table: the decoder's rule, and what reads the source."""

    rule: str
    sizes: Mapping[str, int]
    encoder: str = SOFTMAX
    cross: str = SOFTMAX

    def preset(self, base: Preset) -> Preset:
        """The preset with this row's attention."""
        model = base.model
        own = [
            AttentionConfig(rule, heads=part.heads, sizes=self.sizes, redraw=100)
            for rule, part in (
                (self.rule, model.attention),
                (self.encoder, model.encoder),
                (self.cross, model.cross),
            )
        ]
        return replace(base, model=replace(model, attention=own[0], encoder=own[1], cross=own[2]))


ROWS = {
    "softmax": Row(SOFTMAX, {}),
    "linear": Row("linear_attention", {}),
    "performer": Row("performer", {"M": 64}),
    "delta-dpfp": Row("delta", {}),
    "delta-memory": Row("delta", {}, "linear_attention", "delta"),  # of fixed size throughout
}


def compare(
    corpora: Sequence[Path],
    rows: Sequence[str],
    base: Preset,
    minutes: float,
    steps: int,
    out: Path,
) -> list[dict[str, Any]]:
    """Train and judge every model on every corpus; the tables are written after each."""
    plan = _plan(corpora, rows, base, minutes, steps, out / "plan.json")
    results = []
    for data in corpora:
        tokenizer: Tokenizer | None = None
        for name in rows:
            there = out / data.name / name
            asked = _with_steps(ROWS[name].preset(base), plan[data.name])
            if not (there / "scores.json").is_file():
                resume = (there / checkpoint.LAST).is_file()
                trained = run(data, asked, there, tokenizer=tokenizer, resume=resume)
                if trained["stopped"] == "interrupted":
                    raise KeyboardInterrupt
                scores = {"corpus": data.name, "model": name, **_judge(data, there, trained)}
                (there / "scores.json").write_text(json.dumps(scores, indent=1) + "\n")
            tokenizer = load(there).tokenizer
            results.append(json.loads((there / "scores.json").read_text()))
            write_csv(out / "results.csv", results)
            (out / "results.md").write_text(table(results, base), encoding="utf-8")
    return results


def _plan(
    corpora: Sequence[Path],
    rows: Sequence[str],
    base: Preset,
    minutes: float,
    steps: int,
    path: Path,
) -> dict[str, int]:
    """Steps on each corpus; what was planned once is kept, so that stopped runs can go on."""
    if path.is_file():
        plan: dict[str, int] = json.loads(path.read_text())
        if plan.keys() >= {data.name for data in corpora}:
            return plan
    plan = {data.name: steps for data in corpora}
    if not steps:
        for data in corpora:
            seconds = _seconds(data, rows, base)
            plan[data.name] = max(1, int(minutes * 60 / len(corpora) / seconds))
            print(f"{data.name}: {seconds:.2f} s for a step of each, {plan[data.name]} steps")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plan) + "\n")
    return plan


def _seconds(data: Path, rows: Sequence[str], base: Preset) -> float:
    """Seconds of one training step of every model together."""
    total, tokenizer = 0.0, None
    for name in rows:
        preset = ROWS[name].preset(base)
        task = NMTTask(data, preset.model, preset.run, tokenizer)
        tokenizer = task.tokenizer
        optimizer = torch.optim.AdamW(task.model.parameters(), fused=True)
        for step in range(TRIED):
            if step == 1:  # kernels are built, memory is there
                start = time.perf_counter()
            optimizer.zero_grad()
            task.loss().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        total += (time.perf_counter() - start) / (TRIED - 1)
    return total


def _with_steps(preset: Preset, steps: int) -> Preset:
    training = replace(
        preset.training,
        steps=steps,
        warmup=min(preset.training.warmup, max(1, steps // 5)),
        eval_every=max(1, steps // 6),
        checkpoint_every=max(1, steps // 6),
    )
    return replace(preset, training=training)


def _judge(data: Path, there: Path, trained: Mapping[str, Any]) -> dict[str, Any]:
    """BLEU on the test split, of all sentences and by their length."""
    found = load(there)
    source, target = read_pairs(data, "test", found.languages)
    start = time.perf_counter()
    translations = found.translate(source, BeamConfig())
    seconds = time.perf_counter() - start
    (there / "test.txt").write_text("".join(f"{line}\n" for line in translations), "utf-8")
    best = min(trained["history"], key=lambda row: row["loss"] or math.inf)
    scores = {
        "parameters": trained["parameters"],
        "steps": trained["steps"],
        "train_seconds": trained["train_seconds"],
        "tokens_per_second": trained["tokens_per_second"],
        "valid_perplexity": best["perplexity"],
        "valid_accuracy": best["accuracy"],
        **bleu(translations, target),
        "sentences_per_second": len(source) / seconds,
    }
    lengths = [len(line.split()) for line in source]
    for low, high in BUCKETS:
        which = [i for i, n in enumerate(lengths) if low <= n <= high]
        parts = [[side[i] for i in which] for side in (translations, target)]
        scores[f"bleu_{low}_{high}"] = bleu(*parts)["bleu"] if which else None
    return scores


def table(results: Sequence[Mapping[str, Any]], base: Preset) -> str:
    """The results as Markdown, a table for each corpus."""
    model = base.model
    lines = [
        f"{model.encoder_layers} + {model.decoder_layers} layers, {model.d_model} features, "
        f"feed-forward {model.d_ff}, {model.attention.heads} heads, joint {base.run.tokenizer} of "
        f"{base.run.vocab}, batches of {base.run.batch_tokens} tokens, dropout {model.dropout:g}, "
        f"label smoothing {base.run.smoothing:g}, rate up to {base.training.lr:g}, then falling "
        f"with the square root of the steps, seed {base.run.seed}; beam "
        f"{BeamConfig().beam}, length normalisation {BeamConfig().alpha}.",
    ]
    head = ["model", "BLEU", *(f"{low}-{high} words" for low, high in BUCKETS[:-1])]
    head += [f"{BUCKETS[-1][0]}+ words", "perplexity", "accuracy", "tokens/s", "sentences/s"]
    for corpus in dict.fromkeys(result["corpus"] for result in results):
        own = [result for result in results if result["corpus"] == corpus]
        minutes = sum(result["train_seconds"] for result in own) / 60
        lines += [
            f"\n**{corpus}**: {own[0]['steps']} steps each, {minutes:.1f} minutes of training in "
            "all. BLEU on the test split, perplexity and token accuracy on the validation split.\n",
            f"| {' | '.join(head)} |",
            f"|{'---|' * len(head)}",
            *(_line(result) for result in own),
            f"\nsacreBLEU signature: `{own[0]['signature']}`",
        ]
    return "\n".join(lines) + "\n"


def _line(result: Mapping[str, Any]) -> str:
    by_length = [result[f"bleu_{low}_{high}"] for low, high in BUCKETS]
    scores = ["-" if score is None else f"{score:.1f}" for score in (result["bleu"], *by_length)]
    cells = [
        result["model"],
        *scores,
        f"{result['valid_perplexity']:.1f}",
        f"{result['valid_accuracy']:.3f}",
        f"{result['tokens_per_second']:,}",
        f"{result['sentences_per_second']:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fwgen.models.nmt_compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("corpora", nargs="+", type=Path, metavar="DATA")
    add("--minutes", type=float, default=40.0, help="of training, of all models together")
    add("--steps", type=int, default=0, help="of each model instead")
    add("--rows", default=",".join(ROWS), metavar="NAME,NAME", help=f"of {', '.join(ROWS)}")
    add("--preset", default="small")
    add("--lr", type=float)
    add("--batch-tokens", type=int)
    add("--dropout", type=float, default=0.0, help="few passes over the data need none (default)")
    add("--seed", type=int, default=1)
    add("--threads", type=int, default=0)
    add("--out", type=Path, default=Path("runs", "nmt-compare"))
    args = parser.parse_args(arguments)
    try:
        return _main(args)
    except (fwgen.ArgumentError, fwgen.UnsupportedError, OSError) as error:
        print(f"fwgen: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


def _main(args: argparse.Namespace) -> int:
    rows = args.rows.split(",")
    for name in rows:
        one_of("rows", name, tuple(ROWS))
    one_of("preset", args.preset, tuple(PRESETS))
    at_least("minutes", args.minutes, 0.01)
    at_least("steps", args.steps, 0)
    if args.threads:
        torch.set_num_threads(args.threads)
    base = PRESETS[args.preset]
    feed = {"seed": args.seed}
    if args.batch_tokens is not None:
        feed["batch_tokens"] = args.batch_tokens
    model = replace(base.model, dropout=args.dropout)
    base = replace(base, model=model, run=replace(base.run, **feed))
    if args.lr is not None:
        base = replace(base, training=replace(base.training, lr=args.lr))
    results = compare(args.corpora, rows, base, args.minutes, args.steps, args.out)
    print(table(results, base))
    print(args.out / "results.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
