"""Answers from a memory of a document (de Brebisson and Vincent 2016).

One GRU reads the document and the question. What the question then looks up is

    none          the GRU's last state of the document: [k]
    softmax       all its states: [n, k], a look-up costs n k
    cheap_linear  the sum of their outer products: [k, k], a look-up costs k k whatever n is
    gated_...     the same of states that a gate has let through

and any other rule writes its own state over projections of the GRU's states.

Letters: B documents, n tokens of a document, m of a question, N questions per document, k the
size of a GRU state.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

import fwgen

from .attention_config import SOFTMAX, AttentionConfig, compiled
from .memory import Memory, MemoryAttention, RuleMemory, SoftmaxMemory
from .settings import at_least

NONE = "none"


@dataclass(frozen=True)
class QAConfig:
    """The shape of a reader; the paper has 100 for both sizes."""

    vocab: int = 52
    answers: int = 20  # 1: a score of how well document and question match
    d_embed: int = 32
    d_model: int = 32  # k
    attention: AttentionConfig = field(
        default_factory=lambda: AttentionConfig("gated_cheap_linear")
    )
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocab", "answers", "d_embed", "d_model"):
            at_least(name, getattr(self, name), 1)
        at_least("dropout", self.dropout, 0, below=1)

    def with_text(self) -> QAConfig:
        """The same with the rule's text in place of its name."""
        if self.attention.rule == NONE:
            return self
        return replace(self, attention=self.attention.with_text())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> QAConfig:
        values: dict[str, Any] = json.loads(text)
        return QAConfig(**{**values, "attention": AttentionConfig(**values["attention"])})


class LastState(nn.Module):
    """No look-up: every question gets the GRU's last state."""

    def write(self, states: Tensor, real: Tensor) -> Memory:
        """States [B, n, k] of which `real` [B, n] are no padding -> the memory."""
        return {"last": last_of(states, real.sum(1))}

    def read(self, questions: Tensor, memory: Memory) -> Tensor:
        """[B, N, k] -> the same."""
        return memory["last"][:, None].expand_as(questions)


class StateMemory(nn.Module):
    """The paper's look-ups: the GRU's states are written as they are and asked for by one.

    Gates of the rule that are numbers are one; a gate on what is written is a param of the rule.
    """

    def __init__(self, config: AttentionConfig, d_model: int) -> None:
        super().__init__()
        if config.heads != 1:
            raise fwgen.ArgumentError(
                f"heads: {config.rule} takes the states as they are, expected 1, got {config.heads}"
            )
        config = replace(config, d_key=d_model, d_value=d_model)
        self.mixer = SoftmaxMemory(config) if config.rule == SOFTMAX else RuleMemory(config)
        # Attention divides by the root of the key's size; the paper's does not.
        self.scale = math.sqrt(d_model) if config.rule == SOFTMAX else 1.0

    def write(self, states: Tensor, real: Tensor) -> Memory:
        """States [B, n, k] of which `real` [B, n] are no padding -> the memory."""
        written = states[real].unsqueeze(1)  # [tokens, 1, k]
        gate = written.new_ones(written.shape[:2])
        inputs = {n: written if self.mixer.inputs[n] else gate for n in self.mixer.written}
        return self.mixer.write(inputs, real)

    def read(self, questions: Tensor, memory: Memory) -> Tensor:
        """[B, N, k] -> the same."""
        asked = self.scale * questions.unsqueeze(2)
        return self.mixer.read({"q": asked}, memory).flatten(2)


Lookup = LastState | StateMemory | MemoryAttention


def make_lookup(config: AttentionConfig, d_model: int) -> Lookup:
    """What "none", "softmax" or a rule makes of a document.

    A rule whose inputs are a query and a hidden state `h` (and gates) is given the GRU's states
    themselves; another one projections of them. Raises ArgumentError for a rule that cannot be
    read without writing.
    """
    if config.rule == NONE:
        return LastState()
    if config.rule == SOFTMAX or _takes_states(config):
        return StateMemory(config, d_model)
    return MemoryAttention(config, d_model)


def _takes_states(config: AttentionConfig) -> bool:
    inputs = compiled(config).rule.inputs
    return {name for name, dims in inputs.items() if dims} == {"q", "h"}


class Reader(nn.Module):
    """Documents and questions -> scores of the answers."""

    def __init__(self, config: QAConfig) -> None:
        super().__init__()
        self.config = config
        k = config.d_model
        self.embedding = nn.Embedding(config.vocab, config.d_embed)
        self.dropout = nn.Dropout(config.dropout)
        self.gru = nn.GRU(config.d_embed, k, batch_first=True)
        self.lookup = make_lookup(config.attention, k)
        self.norm = nn.RMSNorm(k, eps=1e-5)  # sums over documents of any length come to one scale
        self.combine = nn.Linear(3 * k, k)
        self.answer = nn.Linear(k, config.answers)

    def forward(
        self, document: Tensor, lengths: Tensor, question: Tensor, question_lengths: Tensor
    ) -> Tensor:
        """Documents [B, n] with one question [B, m] each -> scores [B, answers]."""
        memory = self.write(document, lengths)
        asked = self.ask(question, question_lengths)
        return self.read(memory, asked[:, None])[:, 0]

    def match(
        self, document: Tensor, lengths: Tensor, question: Tensor, question_lengths: Tensor
    ) -> Tensor:
        """Documents [B, n] and questions [N, m] -> scores [B, N, answers] of all pairs."""
        memory = self.write(document, lengths)
        asked = self.ask(question, question_lengths)
        return self.read(memory, asked.expand(len(document), -1, -1))

    def write(self, document: Tensor, lengths: Tensor) -> Memory:
        """Documents [B, n] of `lengths` [B] -> what a look-up reads."""
        real = torch.arange(document.shape[1], device=document.device) < lengths[:, None]
        return self.lookup.write(self._encode(document), real)

    def ask(self, question: Tensor, lengths: Tensor) -> Tensor:
        """Questions [N, m] of `lengths` [N] -> the GRU's last state of each, [N, k]."""
        return last_of(self._encode(question), lengths)

    def read(self, memory: Memory, asked: Tensor) -> Tensor:
        """Encoded questions [B, N, k] about the B documents -> scores [B, N, answers]."""
        found = self.norm(self.lookup.read(asked, memory))
        both = torch.cat([found, asked, found * asked], -1)
        scores: Tensor = self.answer(torch.tanh(self.combine(self.dropout(both))))
        return scores

    def _encode(self, tokens: Tensor) -> Tensor:
        """[B, n] -> the GRU's states [B, n, k]; those after the end are of no meaning."""
        states: Tensor = self.gru(self.dropout(self.embedding(tokens)))[0]
        return states


def last_of(states: Tensor, lengths: Tensor) -> Tensor:
    """States [B, n, k] -> the one of the last real token, [B, k]."""
    return states[torch.arange(len(states), device=states.device), lengths - 1]


def memory_numbers(memory: Memory) -> int:
    """Numbers that are kept for one document, masks not counted."""
    return sum(x[0].numel() for x in memory.values() if x.is_floating_point())


def build(config: QAConfig, tensors: Mapping[str, Tensor]) -> Reader:
    """A model for use, not for training, with the tensors of a checkpoint."""
    model = Reader(config)
    model.load_state_dict(dict(tensors))
    return model.eval()
