"""Multi-query associative recall (Arora et al. 2023): many pairs, then every key once more.

    k1 v1 k2 v2 ... kP vP | . . k2 . . . k1 . ...      asked at k2: v2, at k1: v1

Keys are one half of the vocabulary, values the other. A query stands at an even place behind the
pairs, gap g with a probability in proportion to (g + 1)^(a - 1); what lies between is random. The
usual measure is the accuracy at the queries against the number of pairs, past what was trained.

Letters: B sequences, T tokens, P pairs, V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fwgen

from .attention_config import SOFTMAX, AttentionConfig
from .lm import LanguageModel, LMConfig
from .settings import TrainConfig, at_least, device_of
from .task import Task
from .train import train

UNASKED = -100  # the target where nothing is asked


@dataclass(frozen=True)
class Part:
    """Sequences of one kind, and how often training draws them."""

    length: int
    pairs: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        at_least("pairs", self.pairs, 1)
        at_least("weight", self.weight, 0)
        if self.length % 2 or self.length < 4 * self.pairs:
            raise fwgen.ArgumentError(
                f"length: expected an even number of at least 4 * pairs = {4 * self.pairs}, "
                f"got {self.length}"
            )


@dataclass(frozen=True)
class MQARConfig:
    """The data and how it is fed."""

    vocab: int = 256
    train: tuple[Part, ...] = (Part(64, 4), Part(64, 8), Part(64, 16))
    test: tuple[Part, ...] = (Part(64, 4), Part(64, 8), Part(64, 16), Part(128, 32))
    power: float = 0.01  # a: near 0 most queries come soon, 1 spreads them evenly
    random: bool = True  # tokens that are neither pair nor query: random ones, else zeros
    batch: int = 64
    eval_batch: int = 250  # held-out sequences of each kind
    seed: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("batch", "eval_batch"):
            at_least(name, getattr(self, name), 1)
        at_least("seed", self.seed, 0, below=2**40)
        if not 0 < self.power <= 1:
            raise fwgen.ArgumentError(f"power: expected more than 0, at most 1, got {self.power}")
        for name in ("train", "test"):
            if not getattr(self, name):
                raise fwgen.ArgumentError(f"{name}: expected at least one LENGTH:PAIRS")
        if len({part.pairs for part in self.test}) < len(self.test):
            raise fwgen.ArgumentError("test: expected every number of pairs once")
        if not sum(part.weight for part in self.train):
            raise fwgen.ArgumentError("train: expected a weight above 0")
        most = max(part.pairs for part in (*self.train, *self.test))
        at_least("vocab", self.vocab, 2 * most + 2)  # the keys are 1 to V / 2 - 1
        device_of(self.device)


@dataclass(frozen=True)
class Preset:
    """A model with the data and the training that suit it."""

    model: LMConfig
    run: MQARConfig
    training: TrainConfig


def _preset(d_model: int, run: MQARConfig, steps: int, lr: float, every: int) -> Preset:
    attention = AttentionConfig(heads=1, short_conv=4)
    model = LMConfig(layers=2, d_model=d_model, d_ff=2 * d_model, attention=attention)
    training = TrainConfig(
        steps=steps,
        lr=lr,
        schedule="cosine",
        warmup=steps // 20,
        clip=1.0,
        eval_every=every,
        checkpoint_every=every,
        patience=0,
    )
    return Preset(model, run, training)


# The published mixture: 100,000 sequences of the first kind for 20,000 of each other.
PUBLISHED = MQARConfig(
    vocab=8192,
    train=(Part(64, 4, 5), Part(128, 8), Part(256, 16), Part(256, 32), Part(256, 64)),
    test=(
        *(Part(64, pairs) for pairs in (4, 8, 16)),
        *(Part(4 * pairs, pairs) for pairs in (32, 64, 128, 256)),
    ),
    batch=256,
    eval_batch=1000,
)
PRESETS = {
    "tiny": _preset(
        32, MQARConfig(64, (Part(32, 4),), (Part(32, 2), Part(32, 4)), batch=32), 300, 1e-2, 100
    ),
    "small": _preset(64, MQARConfig(), 1500, 3e-3, 250),
    "published": _preset(64, PUBLISHED, 22_500, 3e-3, 1000),  # 32 passes over 180,000 sequences
}


def draw(
    part: Part, vocab: int, batch: int, generator: torch.Generator, power: float, random: bool
) -> tuple[Tensor, Tensor]:
    """Fresh sequences and targets, [B, T] each; `UNASKED` is the target of all but the queries."""
    P, half = part.pairs, vocab // 2
    keys = 1 + torch.rand(batch, half - 1, generator=generator).argsort(1)[:, :P]
    values = half + torch.rand(batch, vocab - half, generator=generator).argsort(1)[:, :P]
    if random:
        tokens = torch.randint(vocab, (batch, part.length), generator=generator)
    else:
        tokens = torch.zeros(batch, part.length, dtype=torch.int64)
    tokens[:, 0 : 2 * P : 2], tokens[:, 1 : 2 * P : 2] = keys, values
    space = part.length // 2 - P  # gaps that a query can have
    chances = torch.arange(1, space + 1).double() ** (power - 1)
    gaps = torch.multinomial(chances.expand(batch, -1), P, generator=generator)  # all different
    places = 2 * P + 2 * gaps
    targets = torch.full((batch, part.length), UNASKED)
    return tokens.scatter(1, places, keys), targets.scatter(1, places, values)


class MQARTask(Task):
    """The value of a key that was seen before; fresh sequences every step.

    A step is of one kind, drawn by its weight. The held-out sequences are the same for all rules
    and seeds.
    """

    def __init__(self, model: LMConfig, run: MQARConfig) -> None:
        self.run, self.device = run, run.device
        self.config = replace(model, vocab=run.vocab)
        torch.manual_seed(run.seed)
        self.model: LanguageModel = LanguageModel(self.config).to(run.device)
        self.generators = {"train": torch.Generator().manual_seed(run.seed)}
        self.weights = torch.tensor([part.weight for part in run.train], dtype=torch.float64)
        fixed = torch.Generator().manual_seed(2**41)  # above all seeds of training
        self.held_out = [(part, *self._draw(part, run.eval_batch, fixed)) for part in run.test]
        lengths = torch.tensor([part.length for part in run.train]).double()
        mean = (lengths * self.weights).sum() / self.weights.sum()
        self.tokens_per_step = round(run.batch * mean.item())
        text = self.config.attention.with_text()
        self.texts = {"model": replace(self.config, attention=text).to_json()}
        if text.rule != SOFTMAX:
            self.texts["rule"] = text.rule

    def loss(self) -> Tensor:
        generator = self.generators["train"]
        kind = int(torch.multinomial(self.weights, 1, generator=generator))
        tokens, targets = self._draw(self.run.train[kind], self.run.batch, generator)
        return self._nll(tokens, targets)[0].mean()

    def evaluate(self) -> dict[str, float]:
        """Loss over all kinds alike; loss and accuracy by the number of pairs."""
        figures: dict[str, float] = {}
        for part, tokens, targets in self.held_out:
            pieces = [torch.split(x, self.run.batch) for x in (tokens, targets)]
            found = [self._nll(*piece) for piece in zip(*pieces, strict=True)]
            loss, right = (
                torch.cat(one).double().mean().item() for one in zip(*found, strict=True)
            )
            figures |= {f"loss_{part.pairs}": loss, f"accuracy_{part.pairs}": right}
        means = {
            name: sum(v for n, v in figures.items() if n.startswith(name)) / len(self.held_out)
            for name in ("loss", "accuracy")
        }
        return means | figures

    def _draw(self, part: Part, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        run = self.run
        tokens, targets = draw(part, run.vocab, batch, generator, run.power, run.random)
        return tokens.to(self.device), targets.to(self.device)

    def _nll(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Negative log-likelihood of the value at each query, and whether it is the likeliest."""
        features, _ = self.model.read(tokens, None, 0, keep_state=False)
        asked = targets != UNASKED
        scores = self.model.output.log_probs(features[asked], self.model.embedding.weight)
        value = targets[asked]
        return F.nll_loss(scores, value, reduction="none"), scores.argmax(-1) == value


def run(preset: Preset, out: Path | None = None, **others: Any) -> dict[str, Any]:
    """Train one model; returns what `results.json` holds. `others` are options of `train`."""
    task = MQARTask(preset.model, preset.run)
    name = preset.model.attention.name
    about = {
        "task": "mqar",
        "name": name,
        "config": {"model": asdict(task.config), "run": asdict(preset.run)},
    }
    return train(task, preset.training, about, out, label=name, **others)
