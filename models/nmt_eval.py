"""A trained translator in use: lines in, translations out, and how good they are.

BLEU is sacreBLEU's, of plain text, given with the signature that says how it was counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import fwgen

from . import checkpoint
from .beam import BeamConfig, translate
from .data.pairs import Lines, Pairs, end_of, read_pairs
from .data.text import Tokenizer, tokenizer_from
from .distributed import ALONE, World
from .nmt import NMTConfig, Translator, build
from .settings import device_of


@dataclass(frozen=True)
class Loaded:
    """A trained model for use."""

    model: Translator
    tokenizer: Tokenizer
    data: Path  # the corpus that it was trained on
    languages: tuple[str, str]
    step: int
    name: str  # of its rules, for tables
    batch_tokens: int  # that it was trained with

    def judge(self, data: Path, split: str, device: str = "cpu") -> dict[str, float]:
        """Loss, perplexity and accuracy of a part of a corpus, as in the training."""
        sides = read_pairs(data, split, self.languages)
        pairs = Pairs(*(Lines(self.tokenizer, side) for side in sides))
        end = end_of(self.tokenizer)
        return judge(self.model, pairs, end, self.batch_tokens, device)

    def translate(self, lines: Sequence[str], config: BeamConfig) -> list[str]:
        """The best translation of each line, in the same order; of an empty one an empty one."""
        words = [line for line in lines if line.strip()]
        if not words:
            return [""] * len(lines)
        coded = Lines(self.tokenizer, words)
        end = end_of(self.tokenizer)
        sources = [coded.tokens[a:b] for a, b in zip(coded.starts, coded.starts[1:], strict=False)]
        found = iter(translate(self.model, sources, end, config))
        return [self._text(next(found).tokens) if line.strip() else "" for line in lines]

    def _text(self, tokens: Sequence[int]) -> str:
        return " ".join(self.tokenizer.decode(tokens[:-1]).split())


@torch.no_grad()
def judge(
    model: Translator,
    pairs: Pairs,
    end: int,
    batch_tokens: int,
    device: str = "cpu",
    world: World = ALONE,
) -> dict[str, float]:
    """Of all target tokens, given those before: mean loss without smoothing, accuracy.

    Each process of a `world` judges its share of the sentences.
    """
    total = right = 0.0
    for batch in pairs.batches(batch_tokens):
        rows, counted = world.share(len(batch.lengths))
        batch = batch.part(rows).to(device)
        scores = model(batch.source, batch.lengths, batch.inputs(end), batch.real)
        target = batch.target[batch.real]
        total += counted * F.cross_entropy(scores.float(), target, reduction="sum").item()
        right += counted * int((scores.argmax(-1) == target).sum())
    total, right, count = world.total(total), world.total(right), len(pairs.target.tokens)
    return {
        "loss": total / count,
        "perplexity": math.exp(min(total / count, 700)),
        "accuracy": right / count,
    }


def load(path: Path, device: str = "cpu") -> Loaded:
    """A model from a checkpoint or a run's folder (its best one); needs no other file.

    Raises ArgumentError when it is no translator's.
    """
    found = checkpoint.read(path)
    if found.run["about"]["task"] != "nmt":
        raise fwgen.ArgumentError(
            f"checkpoint: expected a translator, {found.path} is of the task "
            f"{found.run['about']['task']}"
        )
    device_of(device)
    source, target = found.texts["languages"].split()
    return Loaded(
        build(NMTConfig.from_json(found.texts["model"]), found.group("model")).to(device),
        tokenizer_from(found.texts["tokenizer"]),
        Path(found.texts["data"]),
        (source, target),
        found.run["progress"]["step"],
        found.run["about"]["name"],
        found.run["about"]["config"]["run"]["batch_tokens"],
    )


def bleu(translations: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """sacreBLEU of a corpus, one reference each, its signature, and the share of equal lines."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise fwgen.UnsupportedError(
            "BLEU needs the package sacrebleu: pip install 'fwgen[models]'"
        ) from None
    if len(translations) != len(references) or not references:
        raise fwgen.ArgumentError(
            f"bleu: expected a reference for each translation, found {len(references)} for "
            f"{len(translations)}"
        )
    metric = BLEU()
    score = metric.corpus_score(list(translations), [list(references)])
    exact = sum(one == other for one, other in zip(translations, references, strict=True))
    return {
        "bleu": score.score,
        "signature": str(metric.get_signature()),
        "exact": exact / max(1, len(references)),
    }
