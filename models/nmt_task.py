"""Training a translator: presets, the task for `train`, a run from the corpus to its results."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import checkpoint
from .attention_config import SOFTMAX, AttentionConfig
from .data.pairs import Batches, Lines, Pairs, end_of, languages_of, read_pairs
from .data.text import Tokenizer, digest, learn_in_first, tokenizer_from
from .distributed import current
from .nmt import ATTENTIONS, NMTConfig, Translator
from .nmt_eval import judge
from .settings import TrainConfig, at_least, device_of
from .task import Task
from .train import train


@dataclass(frozen=True)
class NMTRunConfig:
    """How pairs are cut and fed."""

    source: str = ""  # endings of the files; "": English and the other language
    target: str = ""
    tokenizer: str = "bpe"  # of both languages together; or "bytes" or "words"
    vocab: int = 8000  # of the bpe
    batch_tokens: int = 4096  # of the longer side, padding included
    longest: int = 128  # tokens; longer pairs are not trained on
    smoothing: float = 0.1  # of the labels
    seed: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "longest"):
            at_least(name, getattr(self, name), 1)
        at_least("smoothing", self.smoothing, 0, below=1)
        at_least("seed", self.seed, 0, below=2**40)
        device_of(self.device)


@dataclass(frozen=True)
class Preset:
    """A model with the run and the training that suit it."""

    model: NMTConfig
    run: NMTRunConfig = field(default_factory=NMTRunConfig)
    training: TrainConfig = field(default_factory=TrainConfig)


def _training(steps: int, lr: float, warmup: int, **others: Any) -> TrainConfig:
    settings: dict[str, Any] = {"betas": (0.9, 0.98), "patience": 0, "stop_loss": 0.0} | others
    return TrainConfig(steps=steps, lr=lr, schedule="inverse-sqrt", warmup=warmup, **settings)


def _model(layers: int, d_model: int, heads: int, **others: Any) -> NMTConfig:
    softmax = AttentionConfig(SOFTMAX, heads=heads)
    return NMTConfig(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=d_model,
        d_ff=4 * d_model,
        attention=AttentionConfig(heads=heads),
        encoder=softmax,
        cross=softmax,
        **others,
    )


PRESETS: dict[str, Preset] = {
    "tiny": Preset(
        _model(1, 64, 2, dropout=0.0),
        NMTRunConfig(vocab=400, batch_tokens=1024),
        _training(1000, 3e-3, 100, eval_every=250, checkpoint_every=250),
    ),
    "small": Preset(
        _model(2, 128, 4),
        NMTRunConfig(vocab=4000, batch_tokens=1024),
        _training(6000, 3e-3, 400, eval_every=500, checkpoint_every=500),
    ),
    "base": Preset(
        _model(3, 256, 4),
        NMTRunConfig(),
        _training(20_000, 1e-3, 1000, eval_every=1000, checkpoint_every=1000),
    ),
    # The base Transformer on WMT14 English-German, as in Schlag, Irie and Schmidhuber 2021.
    "wmt": Preset(
        _model(6, 512, 8, norm="post"),
        NMTRunConfig(vocab=32_000, batch_tokens=25_000, longest=256),
        _training(100_000, 7e-4, 4000, eval_every=2000, checkpoint_every=2000),
    ),
}


class NMTTask(Task):
    """Next-token prediction of the target, given the source and the target so far."""

    def __init__(
        self, data: Path, model: NMTConfig, run: NMTRunConfig, tokenizer: Tokenizer | None = None
    ) -> None:
        self.run, self.device, self.world = run, run.device, current()
        self.languages = languages_of(data, run.source, run.target)
        sides = read_pairs(data, "train", self.languages)
        if tokenizer is None:
            text = "".join(f"{line}\n" for side in sides for line in side)
            tokenizer = learn_in_first(self.world, run.tokenizer, text, run.vocab)
        self.tokenizer, self.end = tokenizer, end_of(tokenizer)
        self.pairs = Pairs(*(Lines(tokenizer, side) for side in sides))
        held_out = read_pairs(data, "valid", self.languages)
        self.held_out = Pairs(*(Lines(tokenizer, side) for side in held_out))
        parts = (self.pairs, self.held_out)
        self.digest = digest(side.tokens for p in parts for side in (p.source, p.target))
        self.config = replace(model, vocab=tokenizer.vocab).with_texts()
        torch.manual_seed(run.seed)
        self.model: Translator = Translator(self.config).to(run.device)
        self.generators = {}
        self.batches = Batches(self.pairs, run.batch_tokens, run.longest, run.seed, run.device)
        self.tokens_per_step = self.batches.mean_tokens
        self.texts = {
            "model": self.config.to_json(),
            "tokenizer": tokenizer.to_text(),
            "data": str(data if str(data) == "numbers" else data.resolve()),
            "languages": " ".join(self.languages),
        }

    def loss(self) -> Tensor:
        whole = self.batches.next()
        rows, counted = self.world.share(len(whole.lengths))
        batch = whole.part(rows)
        call = self.spread or self.model
        scores = call(batch.source, batch.lengths, batch.inputs(self.end), batch.real)
        target = batch.target[batch.real]
        loss = F.cross_entropy(scores, target, label_smoothing=self.run.smoothing)
        return loss * (counted * len(target) * self.world.size / whole.real.sum())

    def evaluate(self) -> dict[str, float]:
        tokens = self.run.batch_tokens
        return judge(self.model, self.held_out, self.end, tokens, self.device, self.world)

    def state(self) -> dict[str, Tensor]:
        return super().state() | self.batches.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_state(state)
        self.batches.load_state(state)


def run(
    data: Path,
    preset: Preset,
    out: Path | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    resume: bool = False,
    **others: Any,  # of `train`
) -> dict[str, Any]:
    """Train one model on a corpus; returns what `results.json` holds.

    The tokenizer is learned from the corpus unless one is given or the run is resumed.
    """
    if resume and out and (out / checkpoint.LAST).is_file():
        tokenizer = tokenizer_from(checkpoint.read(out / checkpoint.LAST).texts["tokenizer"])
    task = NMTTask(data, preset.model, preset.run, tokenizer)
    about = about_run(task, preset)
    return train(task, preset.training, about, out, resume=resume, label=about["name"], **others)


def about_run(task: NMTTask, preset: Preset) -> dict[str, Any]:
    """What the run is: names as they were given, and what they stood for as a digest."""
    model = replace(preset.model, vocab=task.config.vocab)
    rules = {name: getattr(task.config, name).rule.encode() for name in ATTENTIONS}
    return {
        "task": "nmt",
        "name": model.name,
        "config": {"model": asdict(model), "run": asdict(preset.run)},
        "data": {
            "digest": task.digest,
            "languages": list(task.languages),
            "rules": {name: hashlib.sha256(rule).hexdigest()[:16] for name, rule in rules.items()},
        },
    }
