"""Judging a trained language model: perplexity by the text that it sees before a token.

Letters: B batch (streams), T tokens of a segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import fwgen

from . import checkpoint
from .data.text import Tokenizer, tokenizer_from
from .distributed import ALONE, World
from .lm import LanguageModel, LMConfig, build
from .settings import at_least, device_of


@dataclass(frozen=True)
class EvalConfig:
    """How much of the text before a token the model sees."""

    segment: int = 256  # tokens that are computed at once
    context: int = 0  # the state is dropped after so many tokens; 0: carried to the end
    stride: int = 0  # windows of `context` tokens that overlap, of which the last `stride` count
    batch: int = 1  # streams that the text is cut into

    def __post_init__(self) -> None:
        at_least("segment", self.segment, 1)
        at_least("batch", self.batch, 1)
        at_least("context", self.context, 0)
        at_least("stride", self.stride, 0)
        if self.stride and not self.stride <= self.context:
            raise fwgen.ArgumentError(
                f"stride: expected at most the context of {self.context}, got {self.stride}"
            )


@torch.no_grad()
def evaluate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    tokens: Tensor,
    how: EvalConfig,
    device: str = "cpu",
    world: World = ALONE,
) -> dict[str, float]:
    """Mean loss per token (nats) with what follows from it: perplexities, bits per byte.

    Each process of a `world` judges its share of the streams.
    """
    share = (len(tokens) - 1) // how.batch
    if share < 1:
        raise fwgen.ArgumentError(f"data: {len(tokens)} tokens are too few for {how.batch} streams")
    used = tokens[: how.batch * share + 1].long()
    x, y = used[:-1].view(how.batch, share), used[1:].view(how.batch, share)
    windows = _overlapping if how.stride else _following
    rows, counted = world.share(how.batch)
    own = torch.zeros((), dtype=torch.float64)
    for nll in windows(model, x[rows].to(device), y[rows].to(device), how):
        own += nll.double().sum().cpu()
    total = world.total(own.item() * counted)
    text = tokenizer.decode(used[1:].tolist())
    count, words = how.batch * share, tokenizer.words(used[1:].tolist())
    return {
        "loss": total / count,
        "perplexity": _exp(total / count),
        "word_perplexity": _exp(total / max(1, words)),
        "bits_per_byte": total / math.log(2) / max(1, len(text.encode())),
        "tokens": count,
        "words": words,
    }


def _following(model: LanguageModel, x: Tensor, y: Tensor, how: EvalConfig) -> Iterator[Tensor]:
    """Segment by segment; the state goes on until the context is full."""
    context = how.context or x.shape[1]
    state, start = None, 0
    while start < x.shape[1]:
        seen = start % context
        if seen == 0:
            state = None
        end = min(start + how.segment, start - seen + context, x.shape[1])
        nll, state = model(x[:, start:end], y[:, start:end], state, seen, keep_state=True)
        yield nll
        start = end


def _overlapping(model: LanguageModel, x: Tensor, y: Tensor, how: EvalConfig) -> Iterator[Tensor]:
    """Windows from scratch, each `stride` further; of the first all tokens count."""
    done = 0
    while done < x.shape[1]:
        end = min(done + (how.stride if done else how.context), x.shape[1])
        start = max(0, end - how.context)
        nll, _ = model(x[:, start:end], y[:, start:end])
        yield nll[:, done - start :]
        done = end


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


# --- self-contained checkpoints


@dataclass(frozen=True)
class Loaded:
    """A trained model for use."""

    name: str  # of the rule, for tables
    model: LanguageModel
    tokenizer: Tokenizer
    data: Path  # the corpus that it was trained on
    segment: int  # that it was trained with
    carry: bool  # ... and whether the state went on from one to the next
    step: int


def load(path: Path, device: str = "cpu") -> Loaded:
    """A model from a checkpoint or a run's folder (its best one); needs no other file.

    Raises ArgumentError when it is no language model's.
    """
    found = checkpoint.read(path)
    if found.run["about"]["task"] != "lm":
        raise fwgen.ArgumentError(
            f"checkpoint: expected a language model, {found.path} is of the task "
            f"{found.run['about']['task']}"
        )
    device_of(device)
    config = LMConfig.from_json(found.texts["model"], found.texts.get("rule"))
    run = found.run["about"]["config"]["run"]
    return Loaded(
        found.run["about"]["name"],
        build(config, found.group("model")).to(device),
        tokenizer_from(found.texts["tokenizer"]),
        Path(found.texts["data"]),
        run["segment"],
        run["carry"],
        found.run["progress"]["step"],
    )
