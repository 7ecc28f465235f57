"""Training a language model: how text is fed, presets, the task for `train`.

Letters: B batch (streams), T tokens of a segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import checkpoint
from .attention_config import SOFTMAX, AttentionConfig
from .data.text import Streams, Tokenizer, digest, learn_in_first, read_split, tokenizer_from
from .distributed import current
from .lm import LanguageModel, LMConfig, States, detach, state_tensors, states_from
from .lm_eval import EvalConfig, evaluate
from .settings import TrainConfig, at_least, device_of
from .task import Task
from .train import train


@dataclass(frozen=True)
class LMRunConfig:
    """How text is cut and fed."""

    tokenizer: str = "bpe"  # or "bytes" or "words"
    vocab: int = 4096  # of the bpe
    batch: int = 16  # streams
    segment: int = 256  # tokens; gradients end there
    carry: bool = True  # the state goes on into the next segment
    eval_batch: int = 16  # streams that an evaluation cuts the text into
    eval_tokens: int = 200_000  # at most, of the validation text; 0: all
    seed: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("batch", "segment", "eval_batch"):
            at_least(name, getattr(self, name), 1)
        at_least("eval_tokens", self.eval_tokens, 0)
        at_least("seed", self.seed, 0, below=2**63)
        device_of(self.device)


@dataclass(frozen=True)
class Preset:
    """A model with the run and the training that suit it."""

    model: LMConfig
    run: LMRunConfig = field(default_factory=LMRunConfig)
    training: TrainConfig = field(default_factory=TrainConfig)


def _paper(d_model: int, segment: int, batch: int, steps: int) -> Preset:
    """WikiText-103 as in Schlag, Irie and Schmidhuber 2021."""
    heads = 8
    attention = AttentionConfig(heads=heads, scale=(d_model // heads) ** -0.5)
    return Preset(
        LMConfig(
            layers=16,
            d_model=d_model,
            d_ff=2048,
            attention=attention,
            norm="post",
            positions="sinusoidal",
            feed="relu",
            output="adaptive",
            cutoffs=(20_000, 40_000, 200_000),
            dropout=0.1,
            init=0.02,
        ),
        LMRunConfig("words", batch=batch, segment=segment, carry=False, eval_tokens=0),
        _cosine(steps, 2.5e-4, 2000, clip=0.25, eval_every=5000, checkpoint_every=5000),
    )


def _cosine(steps: int, lr: float, warmup: int, **others: Any) -> TrainConfig:
    settings = {"clip": 1.0, "patience": 0, "stop_loss": 0.0} | others
    return TrainConfig(steps=steps, lr=lr, schedule="cosine", warmup=warmup, **settings)


PRESETS: dict[str, Preset] = {
    "tiny": Preset(
        LMConfig(layers=2, d_model=64, d_ff=128, attention=AttentionConfig(heads=2)),
        LMRunConfig("bytes", batch=8, segment=64, eval_batch=8, eval_tokens=20_000),
        _cosine(300, 3e-3, 30, eval_every=100, checkpoint_every=100),
    ),
    "small": Preset(
        LMConfig(d_model=128, d_ff=512, attention=AttentionConfig(heads=4), dropout=0.1),
        LMRunConfig("bpe"),
        _cosine(2000, 2e-3, 100, eval_every=250, checkpoint_every=250),
    ),
    "base": Preset(
        LMConfig(d_model=256, d_ff=1024, attention=AttentionConfig(heads=4), dropout=0.1),
        LMRunConfig("bytes", batch=8, segment=1024, eval_batch=8),
        _cosine(5000, 1e-3, 200, eval_every=500, checkpoint_every=500),
    ),
    "wt103-small": _paper(128, 256, 96, 500_000),
    "wt103-medium": _paper(256, 384, 56, 400_000),
}


class LMTask(Task):
    """Next-token prediction on contiguous streams, with the state carried if the run asks for it.

    The model's vocabulary is the tokenizer's, which is learned from the training text unless one
    is given. Softmax attention that is carried sees one segment's length back, or it would be
    trained on contexts of any length.
    """

    def __init__(
        self, data: Path, model: LMConfig, run: LMRunConfig, tokenizer: Tokenizer | None = None
    ) -> None:
        self.run, self.device, self.world = run, run.device, current()
        at_least("batch", run.batch, self.world.size)
        text = read_split(data, "train")
        self.tokenizer = tokenizer or learn_in_first(self.world, run.tokenizer, text, run.vocab)
        tokens = self.tokenizer.encode(text)
        held_out = read_split(data, "valid")
        self.held_out = self.tokenizer.encode(held_out)
        self.digest = digest([tokens, self.held_out])
        if run.eval_tokens:
            self.held_out = self.held_out[: run.eval_tokens + 1]
        attention = model.attention
        if attention.rule == SOFTMAX and run.carry and not attention.window:
            attention = replace(attention, window=run.segment)
        self.config = replace(model, vocab=self.tokenizer.vocab, attention=attention)
        torch.manual_seed(run.seed)
        self.model: LanguageModel = LanguageModel(self.config).to(run.device)
        generator = torch.Generator().manual_seed(run.seed)
        self.generators = {"streams": generator}
        self.rows = self.world.rows(run.batch)
        self.streams = Streams(tokens, run.batch, run.segment, generator, run.device, self.rows)
        self.carried: States | None = None
        self.position = 0  # tokens that the carried state has seen
        self.tokens_per_step = run.batch * run.segment
        self.texts = _texts(self.config, self.tokenizer, data)

    def loss(self) -> Tensor:
        x, y, first = self.streams.next()
        if first or not self.run.carry:
            self.carried, self.position = None, 0
        call = self.spread or self.model
        nll, after = call(x, y, self.carried, self.position, self.run.carry)
        self.carried, self.position = detach(after), self.position + x.shape[1]
        loss: Tensor = nll.mean() * (len(x) * self.world.size / self.run.batch)
        return loss

    def evaluate(self) -> dict[str, float]:
        context = 0 if self.run.carry else self.run.segment
        how = EvalConfig(self.run.segment, context, 0, self.run.eval_batch)
        found = evaluate(self.model, self.tokenizer, self.held_out, how, self.device, self.world)
        return {n: found[n] for n in ("loss", "perplexity", "word_perplexity")}

    def state(self) -> dict[str, Tensor]:
        own, batch = state_tensors(self.carried), self.run.batch
        carried = {f"carried.{name}": self.world.whole(x, batch) for name, x in own.items()}
        place = {"position": torch.tensor(self.position)} | self.streams.state()
        return super().state() | place | carried

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_state(state)
        self.streams.load_state(state)
        self.position = int(state["position"])
        carried = {n: x for n, x in state.items() if n.startswith("carried.")}
        carried = {n.removeprefix("carried."): x[self.rows] for n, x in carried.items()}
        self.carried = states_from(carried, self.device)


def run(
    data: Path,
    preset: Preset,
    out: Path | None = None,
    *,
    resume: bool = False,
    **others: Any,  # of `train`
) -> dict[str, Any]:
    """Train one model on a corpus; returns what `results.json` holds."""
    tokenizer = None
    if resume and out and (out / checkpoint.LAST).is_file():
        tokenizer = tokenizer_from(checkpoint.read(out / checkpoint.LAST).texts["tokenizer"])
    task = LMTask(data, preset.model, preset.run, tokenizer)
    about: dict[str, Any] = {
        "task": "lm",
        "name": preset.model.attention.name,
        "config": {"model": asdict(task.config), "run": asdict(preset.run)},
        "data": {"digest": task.digest},
    }
    return train(task, preset.training, about, out, resume=resume, label=about["name"], **others)


def _texts(config: LMConfig, tokenizer: Tokenizer, data: Path) -> dict[str, str]:
    texts = {
        "model": config.to_json(),
        "tokenizer": tokenizer.to_text(),
        "data": str(data.resolve()),
    }
    if config.attention.rule != SOFTMAX:
        texts["rule"] = config.attention.with_text().rule
    return texts
