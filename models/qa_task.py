"""Training a reader: on synthetic cloze documents, or on pages whose titles are looked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import checkpoint
from .data.cloze import ClozeConfig, Documents, draw
from .data.pairs import Lines, read_pairs
from .data.text import Tokenizer, digest, learn_tokenizer, tokenizer_from
from .qa import NONE, QAConfig, Reader
from .settings import TrainConfig, at_least, device_of
from .task import Task
from .train import train

CLOZE = "cloze"  # in place of a corpus
PARTS = ("title", "body")


@dataclass(frozen=True)
class QARunConfig:
    """How documents are fed."""

    batch: int = 32  # documents; of pages, also the number of titles that each is held against
    eval_batch: int = 500  # held-out documents, at most
    tokenizer: str = "bpe"  # of pages; or "bytes" or "words"
    vocab: int = 2000  # of the bpe
    longest: int = 128  # tokens of a page that are read
    seed: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("eval_batch", "longest"):
            at_least(name, getattr(self, name), 1)
        at_least("batch", self.batch, 1)
        at_least("seed", self.seed, 0, below=2**40)
        device_of(self.device)


TRAINING = TrainConfig(
    steps=1000, lr=3e-3, schedule="cosine", warmup=50, clip=1.0, eval_every=250, patience=0
)


@dataclass(frozen=True)
class QARun:
    """All that a run is, besides its corpus."""

    model: QAConfig = field(default_factory=QAConfig)
    run: QARunConfig = field(default_factory=QARunConfig)
    cloze: ClozeConfig = field(default_factory=ClozeConfig)
    training: TrainConfig = TRAINING


class ClozeTask(Task):
    """The subject that a question leaves out, among all entities; fresh documents every step.

    The held-out documents are the same for all rules and all seeds.
    """

    def __init__(self, asked: QARun) -> None:
        self.cloze, self.run, self.device = asked.cloze, asked.run, asked.run.device
        self.config = replace(asked.model, vocab=asked.cloze.vocab, answers=asked.cloze.entities)
        torch.manual_seed(self.run.seed)
        self.model: Reader = Reader(self.config).to(self.device)
        self.generators = {"train": torch.Generator().manual_seed(self.run.seed)}
        fixed = torch.Generator().manual_seed(2**41)  # above all seeds of training
        self.held_out = draw(self.cloze, self.run.eval_batch, fixed).to(self.device)
        self.tokens_per_step = self.run.batch * self.cloze.mean_tokens
        self.texts = texts_of(self.config)

    def loss(self) -> Tensor:
        drawn = draw(self.cloze, self.run.batch, self.generators["train"]).to(self.device)
        return F.cross_entropy(self._scores(drawn), drawn.answer)

    def evaluate(self) -> dict[str, float]:
        scores, answer = self._scores(self.held_out), self.held_out.answer
        right = (scores.argmax(-1) == answer).float().mean()
        return {"loss": F.cross_entropy(scores, answer).item(), "accuracy": right.item()}

    def _scores(self, d: Documents) -> Tensor:
        scores: Tensor = self.model(d.document, d.lengths, d.question, d.question_lengths)
        return scores.float()


class PagesTask(Task):
    """Which page has this title, among those of the batch; held out, among all held-out pages."""

    def __init__(self, data: Path, asked: QARun, tokenizer: Tokenizer | None = None) -> None:
        self.run, self.device = asked.run, asked.run.device
        at_least("batch", self.run.batch, 2)  # of pages, or there would be nothing to choose
        titles, bodies = read_pairs(data, "train", PARTS)
        if tokenizer is None:
            text = "".join(f"{line}\n" for part in (titles, bodies) for line in part)
            tokenizer = learn_tokenizer(self.run.tokenizer, text, self.run.vocab)
        self.tokenizer = tokenizer
        self.titles, self.bodies = Lines(tokenizer, titles), Lines(tokenizer, bodies)
        at_least("batch", self.run.batch, 2, below=len(titles) + 1)
        held_out = [lines[: self.run.eval_batch] for lines in read_pairs(data, "valid", PARTS)]
        self.held_titles, self.held_bodies = (Lines(tokenizer, lines) for lines in held_out)
        parts = (self.titles, self.bodies, self.held_titles, self.held_bodies)
        self.digest = digest(part.tokens for part in parts)
        self.config = replace(asked.model, vocab=tokenizer.vocab, answers=1)
        torch.manual_seed(self.run.seed)
        self.model: Reader = Reader(self.config).to(self.device)
        self.generators = {"train": torch.Generator().manual_seed(self.run.seed)}
        mean = self.bodies.lengths.clamp(max=self.run.longest).float().mean()
        self.tokens_per_step = round(self.run.batch * mean.item())
        self.texts = texts_of(self.config) | {"tokenizer": tokenizer.to_text()}

    def loss(self) -> Tensor:
        """Both ways: the page of each title and the title of each page."""
        order = torch.randperm(len(self.titles), generator=self.generators["train"])
        which = order[: self.run.batch]
        scores = self.scores(self.bodies.padded(which), self.titles.padded(which))  # [B, B]
        own = torch.arange(len(which), device=self.device)
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2

    def evaluate(self) -> dict[str, float]:
        """Accuracy: the own page comes first; the mean of one over its rank."""
        every = torch.arange(len(self.held_titles))
        titles = self.held_titles.padded(every)
        rows = [
            self.scores(self.held_bodies.padded(part), titles) for part in torch.split(every, 64)
        ]
        scores = torch.cat(rows).t()  # [titles, pages]
        own = every.to(self.device)
        mine = scores.diagonal()[:, None]
        # Equal scores count against: a model that cannot tell pages apart finds none.
        rank = (scores >= mine).sum(1).float()
        return {
            "loss": F.cross_entropy(scores, own).item(),
            "accuracy": (rank == 1).float().mean().item(),
            "reciprocal_rank": (1 / rank).mean().item(),
        }

    def scores(self, pages: tuple[Tensor, Tensor], titles: tuple[Tensor, Tensor]) -> Tensor:
        """Pages and titles, tokens and lengths each -> [pages, titles]."""
        body, lengths = pages
        body, lengths = body[:, : self.run.longest], lengths.clamp(max=self.run.longest)
        moved = (x.to(self.device) for x in (body, lengths, *titles))
        scores: Tensor = self.model.match(*moved)
        return scores[..., 0].float()


def texts_of(config: QAConfig) -> dict[str, str]:
    """What a checkpoint holds besides tensors, so that it can be used alone."""
    full = config.with_text()
    texts = {"model": full.to_json()}
    return texts | {"rule": full.attention.rule} if full.attention.rule != NONE else texts


def run(
    data: Path,
    asked: QARun,
    out: Path | None = None,
    *,
    resume: bool = False,
    **others: Any,  # of `train`
) -> dict[str, Any]:
    """Train one reader; returns what `results.json` holds."""
    task: ClozeTask | PagesTask
    if str(data) == CLOZE:
        task = ClozeTask(asked)
        about: dict[str, Any] = {"cloze": asdict(asked.cloze)}
    else:
        tokenizer = None
        if resume and out and (out / checkpoint.LAST).is_file():
            tokenizer = tokenizer_from(checkpoint.read(out / checkpoint.LAST).texts["tokenizer"])
        task = PagesTask(data, asked, tokenizer)
        about = {"digest": task.digest}
    model = replace(asked.model, vocab=task.config.vocab, answers=task.config.answers)
    name = asked.model.attention.name
    document: Mapping[str, Any] = {
        "task": "qa",
        "name": name,
        "config": {"model": asdict(model), "run": asdict(asked.run)},
        "data": about,
    }
    return train(task, asked.training, dict(document), out, resume=resume, label=name, **others)
