"""Synthetic documents with a cloze question, of any number and without any data.

A document is a row of statements `subject verb object` among words that say nothing; the question
is one of the statements with a placeholder for its subject, which is the answer. Entities are
subjects and objects alike and are drawn anew for each document, so nothing can be known without
reading it; no two statements of a document share verb and object.

Letters: B documents, n tokens of the longest, P statements, E entities.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import fwgen

from ..settings import at_least

PADDING, PLACEHOLDER, FIRST = 0, 1, 2  # entities come first, then verbs, then fillers


@dataclass(frozen=True)
class ClozeConfig:
    """How long the documents are and what is in them."""

    statements: int = 8  # P
    gap: int = 6  # words that say nothing before a statement: up to so many
    entities: int = 20  # E
    verbs: int = 10
    fillers: int = 20

    def __post_init__(self) -> None:
        for name, least in (("statements", 1), ("gap", 0), ("entities", 2), ("verbs", 1)):
            at_least(name, getattr(self, name), least)
        at_least("fillers", self.fillers, 1 if self.gap else 0)
        if self.statements > self.verbs * self.entities:
            raise fwgen.ArgumentError(
                f"statements: expected at most verbs * entities = {self.verbs * self.entities}, "
                f"got {self.statements}: no two may share verb and object"
            )

    @property
    def vocab(self) -> int:
        return FIRST + self.entities + self.verbs + self.fillers

    @property
    def mean_tokens(self) -> int:
        """Of a document, rounded."""
        return round(self.statements * (3 + self.gap / 2))


@dataclass(frozen=True)
class Documents:
    """Documents with a question each, padded with zeros."""

    document: Tensor  # [B, n]
    lengths: Tensor  # [B]
    question: Tensor  # [B, 3]
    question_lengths: Tensor  # [B]
    answer: Tensor  # [B], a number below E

    def to(self, device: str) -> Documents:
        return Documents(*(tensor.to(device) for tensor in vars(self).values()))


def draw(config: ClozeConfig, batch: int, generator: torch.Generator) -> Documents:
    """Fresh documents; all that they hold comes from the generator."""
    E, P = config.entities, config.statements
    # The first P of a random order of all pairs of verb and object: none is drawn twice.
    pairs = torch.rand(batch, config.verbs * E, generator=generator).argsort(1)[:, :P]
    verb, object_ = pairs // E, pairs % E
    other = torch.randint(1, E, (batch, P), generator=generator)
    subject = (object_ + other) % E  # never the object itself
    statements = FIRST + torch.stack([subject, E + verb, object_], 2)  # [B, P, 3]
    gaps = torch.randint(config.gap + 1, (batch, P), generator=generator)
    starts = gaps.cumsum(1) + 3 * torch.arange(P)  # [B, P]
    lengths = starts[:, -1] + 3
    n = int(lengths.max())
    document = torch.zeros(batch, n, dtype=torch.int64)
    if config.gap:
        first = FIRST + E + config.verbs
        document = torch.randint(first, config.vocab, (batch, n), generator=generator)
    places = starts[:, :, None] + torch.arange(3)
    document.scatter_(1, places.flatten(1), statements.flatten(1))
    document[torch.arange(n) >= lengths[:, None]] = PADDING
    asked = torch.randint(P, (batch,), generator=generator)
    rows = torch.arange(batch)
    question = statements[rows, asked]  # [B, 3]
    question[:, 0] = PLACEHOLDER
    return Documents(document, lengths, question, torch.full((batch,), 3), subject[rows, asked])
