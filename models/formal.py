"""Formal languages and algorithms: what a model does with strings longer than it has seen.

At each symbol the model tells a class: whether the string so far is a member, what can follow, the
state of a computation (`data/formal.py` has the languages). A string counts as right when every
question about it is answered rightly.

Letters: B batch, T symbols, d features, C classes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fwgen

from .attention_config import SOFTMAX, AttentionConfig
from .data.formal import LANGUAGES
from .data.language import IGNORED, Language, Window
from .lm import Block, LMConfig, sinusoids
from .settings import TrainConfig, at_least, device_of, one_of
from .task import Task
from .train import train

Word = tuple[str, ...]
SETUPS = ("small", "full")
MODEL = LMConfig(layers=2, d_model=32, d_ff=64, attention=AttentionConfig(heads=4))
TRAINING = TrainConfig(
    steps=1000, lr=3e-3, betas=(0.9, 0.995), clip=1.0, eval_every=250, patience=0, stop_loss=0.0
)


@dataclass(frozen=True)
class FormalConfig:
    """One run. `preset` gives every language its own sizes; these are those of parity."""

    language: str = "parity"
    lengths: Window = (2, 20)  # to train on
    longer: tuple[Window, ...] = ((21, 40),)  # to be judged on as well
    strings: int = 0  # distinct ones for training; 0: fresh ones in every batch
    model: LMConfig = MODEL  # its vocabulary and output are the language's
    batch: int = 64
    eval_strings: int = 500  # of each window, distinct; fewer if there are fewer
    seed: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        one_of("language", self.language, tuple(LANGUAGES))
        for window in self.windows:
            LANGUAGES[self.language].sizes(window)
        for name in ("batch", "eval_strings"):
            at_least(name, getattr(self, name), 1)
        at_least("strings", self.strings, 0)
        at_least("seed", self.seed, 0, below=2**40)
        device_of(self.device)

    @property
    def windows(self) -> tuple[Window, ...]:
        """The bins: the sizes of the training, then longer ones."""
        return (self.lengths, *self.longer)


def preset(language: str, setup: str = "small") -> FormalConfig:
    """The sizes of a language for minutes on two cores ("small"), or as published ("full")."""
    one_of("language", language, tuple(LANGUAGES))
    one_of("setup", setup, SETUPS)
    found = LANGUAGES[language].small if setup == "small" else LANGUAGES[language].full
    return FormalConfig(language, found.lengths, found.longer, found.strings)


class Labeller(nn.Module):
    """Symbols -> the class at each of them: the blocks of the language model under another head."""

    def __init__(self, config: LMConfig, classes: int) -> None:
        super().__init__()
        self.config = config
        d = config.d_model
        self.embedding = nn.Embedding(config.vocab, d)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(d) if config.norm == "pre" else nn.Identity()
        self.head = nn.Linear(d, classes)

    def forward(self, symbols: Tensor) -> Tensor:
        """[B, T] -> scores [B, T, C]."""
        x = self.embedding(symbols)  # [B, T, d]
        if self.config.positions == "sinusoidal":
            x = x + sinusoids(0, symbols.shape[1], self.config.d_model).to(x)
        x = self.dropout(x)
        for block in self.blocks:
            x, _ = block(x, None, 0, False)
        scores: Tensor = self.head(self.norm(x))
        return scores


@dataclass
class Bin:
    """Held-out strings of a window, in batches of symbols and targets [B, T]."""

    window: Window
    batches: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @classmethod
    def of(cls, language: Language, window: Window, words: Sequence[Word], size: int) -> Bin:
        """In batches of `size` strings, from short to long: little padding."""
        words = sorted(words, key=len)
        parts = [words[i : i + size] for i in range(0, len(words), size)]
        return cls(window, [language.encode(part) for part in parts])

    @property
    def name(self) -> str:
        low, high = self.window
        return str(low) if low == high else f"{low}-{high}"


def draw_bins(
    language: Language, windows: Sequence[Window], count: int, rng: random.Random
) -> list[tuple[Window, list[Word]]]:
    """Held-out strings, distinct within their window."""
    return [(window, language.distinct(rng, window, count)) for window in windows]


class FormalTask(Task):
    """Data, loss and evaluation for `train`."""

    def __init__(self, config: FormalConfig) -> None:
        self.config, self.device = config, config.device
        self.language: Language = LANGUAGES[config.language]
        shape = replace(config.model, vocab=len(self.language.alphabet))
        torch.manual_seed(config.seed)
        self.model: Labeller = Labeller(shape, len(self.language.classes)).to(config.device)
        self.generators = {"strings": torch.Generator().manual_seed(config.seed)}
        self._draw_sets()
        self.texts = _texts(config, shape)

    def _draw_sets(self) -> None:
        """Held-out strings, and those for training if they are not fresh ones.

        Fresh strings may be held-out ones by chance: the first bin asks for the language, the
        longer ones for its continuation.
        """
        config, size = self.config, self.config.batch
        rng = random.Random(config.seed + 1_000_000)
        drawn = draw_bins(self.language, config.windows, config.eval_strings, rng)
        self.bins = [Bin.of(self.language, window, words, size) for window, words in drawn]
        first = drawn[0][1]  # of the lengths of the training
        self.tokens_per_step = size * sum(map(len, first)) // len(first)
        held_out = {word for _, words in drawn for word in words}
        self.words = self.language.distinct(rng, config.lengths, config.strings, held_out)
        if config.strings and not self.words:
            raise fwgen.ArgumentError(
                f"strings: expected lengths with more than {len(held_out)} strings of "
                f"{config.language}, all are held out; fewer eval_strings or wider lengths help"
            )

    def loss(self) -> Tensor:
        seed = torch.randint(2**62, (), generator=self.generators["strings"])
        rng = random.Random(int(seed))
        if self.words:
            words = rng.choices(self.words, k=self.config.batch)
        else:
            count, lengths = self.config.batch, self.config.lengths
            words = [self.language.sample(rng, lengths) for _ in range(count)]
        scores, targets = _scores(self.model, *self.language.encode(words), self.device)
        return _nll(scores, targets) / (targets != IGNORED).sum()

    def evaluate(self) -> dict[str, float]:
        """As `judge`: the training stops when all is solved."""
        return judge(self.model, self.bins, self.device)


def _scores(
    model: Labeller, symbols: Tensor, targets: Tensor, device: str
) -> tuple[Tensor, Tensor]:
    return model(symbols.to(device)).float(), targets.to(device)


def judge(model: Labeller, bins: Sequence[Bin], device: str) -> dict[str, float]:
    """Mean loss of all questions, and the part of right strings in each bin and in all.

    "solved" is 1 when every string is right.
    """
    total = questions = right = count = 0.0
    figures = {}
    for one in bins:
        own = strings = 0.0
        for batch in one.batches:
            scores, targets = _scores(model, *batch, device)
            total += _nll(scores, targets).item()
            questions += int((targets != IGNORED).sum())
            own += int(right_strings(scores, targets).sum())
            strings += len(targets)
        figures[f"accuracy_{one.name}"] = own / strings
        right, count = right + own, count + strings
    means = {"loss": total / questions, "accuracy": right / count}
    return means | figures | {"solved": float(right == count)}


def right_strings(scores: Tensor, targets: Tensor) -> Tensor:
    """Scores [B, T, C], targets [B, T] -> [B], true where no question has a wrong answer."""
    return ((scores.argmax(-1) == targets) | (targets == IGNORED)).all(1)


def _nll(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(
        scores.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def _texts(config: FormalConfig, shape: LMConfig) -> dict[str, str]:
    """What a checkpoint needs to be used alone."""
    about = {"language": config.language, "windows": config.windows}
    texts = {"model": shape.to_json(), "language": json.dumps(about)}
    if shape.attention.rule != SOFTMAX:
        texts["rule"] = shape.attention.with_text().rule
    return texts


def run(
    config: FormalConfig,
    training: TrainConfig = TRAINING,
    out: Path | None = None,
    **others: Any,  # of `train`
) -> dict[str, Any]:
    """Train one model on one language; returns what `results.json` holds."""
    task = FormalTask(config)
    name = config.model.attention.name
    about = {"task": "formal", "name": name, "config": asdict(config)}
    return train(task, training, about, out, label=f"{name} {config.language}", **others)
