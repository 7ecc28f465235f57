"""Beam search over states: of each sentence the best few hypotheses go on, a token at a time.

A hypothesis is the state of the decoder after its tokens, so going on with another one is a
selection of rows. Hypotheses that have ended are ranked by log p / ((5 + n) / 6)^alpha, n tokens
with the end (Wu et al. 2016).

Letters: B sentences, k hypotheses of each, t tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .nmt import Memories, States, Translator, select
from .settings import at_least


@dataclass(frozen=True)
class BeamConfig:
    """How translations are searched."""

    beam: int = 4  # hypotheses that go on; 1: always the most probable token
    alpha: float = 0.6  # how much a longer translation is excused; 0: not at all
    stretch: float = 2.0  # a translation has at most stretch * source + extra tokens
    extra: int = 10
    batch_tokens: int = 8192  # hypotheses times source tokens at once

    def __post_init__(self) -> None:
        for name in ("beam", "extra", "batch_tokens"):
            at_least(name, getattr(self, name), 1)
        for name in ("alpha", "stretch"):
            at_least(name, getattr(self, name), 0)


@dataclass(frozen=True)
class Hypothesis:
    """A translation: its tokens with the end, log p, and the score that ranks it."""

    tokens: list[int]
    log_p: float
    score: float


@dataclass
class _Open:
    """The sentences that are still searched. A row is a hypothesis, k rows follow each other."""

    number: Tensor  # [B] of the sentence
    limit: Tensor  # [B] tokens at most
    total: Tensor  # [B, k] log p so far
    tokens: Tensor  # [B, k, 1 + t], from the end that every translation starts with
    memories: Memories  # [B, ...]
    states: States | None  # [B * k, ...]

    def go_on(self, beam: Tensor, token: Tensor, total: Tensor) -> None:
        """Hypothesis j becomes hypothesis beam[j] of its sentence with one more token, [B, k]."""
        B, k = beam.shape
        whole = self.tokens.gather(1, beam[..., None].expand(-1, -1, self.tokens.shape[2]))
        self.tokens = torch.cat([whole, token[..., None]], 2)
        self.total = total
        first = torch.arange(B, device=beam.device)[:, None] * k
        self.states = select(self.states or [], (first + beam).flatten())

    def close(self, keep: Tensor) -> None:
        """Drop the sentences that `keep` [B] does not mark."""
        k, rows = self.total.shape[1], keep.nonzero()[:, 0]
        for name in ("number", "limit", "total", "tokens"):
            setattr(self, name, getattr(self, name)[rows])
        self.memories = select(self.memories, rows)
        each = rows[:, None] * k + torch.arange(k, device=rows.device)
        self.states = select(self.states or [], each.flatten())


@torch.no_grad()
def search(
    model: Translator, source: Tensor, lengths: Tensor, end: int, config: BeamConfig
) -> list[list[Hypothesis]]:
    """Source [B, S] of `lengths` [B] -> up to `beam` hypotheses per sentence, the best first."""
    B, k = len(source), config.beam
    total = torch.full((B, k), -torch.inf, device=source.device)
    total[:, 0] = 0  # all start alike: one of them is enough
    limit = (lengths * config.stretch).long() + config.extra
    tokens = source.new_full((B, k, 1), end)
    memories = model.encode(source, lengths)
    number = torch.arange(B, device=source.device)
    rest = _Open(number, limit, total, tokens, memories, None)
    found: list[list[Hypothesis]] = [[] for _ in range(B)]
    while len(rest.number):
        _extend(model, rest, found, end, config)
        full = [len(found[i]) >= k for i in rest.number.tolist()]
        done = torch.tensor(full, device=source.device) | (rest.tokens.shape[2] > rest.limit)
        if done.any():
            rest.close(~done)
    return [sorted(ended, key=lambda one: -one.score)[:k] for ended in found]


def _extend(
    model: Translator, rest: _Open, found: list[list[Hypothesis]], end: int, config: BeamConfig
) -> None:
    """One token more: what ends among the k best goes to `found`, the k best others go on."""
    k, t = config.beam, rest.tokens.shape[2] - 1
    last = rest.tokens[:, :, -1].flatten()
    log_probs, rest.states = model.step(last, rest.memories, rest.states, t)
    V = log_probs.shape[-1]
    log_probs = log_probs.view(-1, k, V)
    full = rest.limit == t + 1  # here only the end is left
    others = torch.arange(V, device=log_probs.device) != end
    log_probs = log_probs.masked_fill(full[:, None, None] & others, -torch.inf)
    totals = (rest.total[..., None] + log_probs).flatten(1)  # [B, k * V]
    value, place = totals.topk(min(2 * k, totals.shape[1]), -1)  # at most k of them end
    beam, token = place // V, place % V
    ended = token == end
    for b, j in (ended[:, :k] & value[:, :k].isfinite()).nonzero().tolist():
        tokens = [*rest.tokens[b, beam[b, j], 1:].tolist(), end]
        log_p = value[b, j].item()
        score = log_p / ((5 + len(tokens)) / 6) ** config.alpha
        found[rest.number[b]].append(Hypothesis(tokens, log_p, score))
    order = ended.long().argsort(stable=True)[:, :k]  # those that go on, the best first
    rest.go_on(beam.gather(1, order), token.gather(1, order), value.gather(1, order))


def translate(
    model: Translator, sources: Sequence[Tensor], end: int, config: BeamConfig
) -> list[Hypothesis]:
    """Sentences as tokens with their end -> the best translation of each, in the same order.

    Sentences of about the same length are computed together.
    """
    from .data.pairs import groups

    device = model.embedding.weight.device
    lengths = torch.tensor([len(source) for source in sources])
    best: dict[int, Hypothesis] = {}
    order = lengths.argsort(stable=True)
    for which in groups(lengths, order, max(1, config.batch_tokens // config.beam)):
        rows = [sources[i] for i in which.tolist()]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).long()
        found = search(model, padded.to(device), lengths[which].to(device), end, config)
        best |= {i: hypotheses[0] for i, hypotheses in zip(which.tolist(), found, strict=True)}
    return [best[i] for i in range(len(sources))]
