"""An encoder-decoder Transformer for translation whose attention is any rule, or softmax.

The decoder's self-attention is causal; encoder and cross-attention read a memory (`memory.py`),
softmax's or one of fixed size. With rules everywhere a target token costs the same time and space
however long source and target are.

Letters: B sentences, S source tokens, T target tokens, d features, V vocabulary, N hypotheses, the
same number for each sentence, one sentence after another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import FastWeightAttention
from .attention_config import SOFTMAX, AttentionConfig
from .lm import sinusoids
from .memory import Memory, MemoryAttention
from .mixer import State
from .settings import at_least, one_of

States = list[State]  # of each decoder layer's self-attention
Memories = list[Memory]  # of the source, for each decoder layer


def _softmax() -> AttentionConfig:
    return AttentionConfig(SOFTMAX, heads=4)


@dataclass(frozen=True)
class NMTConfig:
    """The shape of a model."""

    vocab: int = 256  # of both languages together
    encoder_layers: int = 3
    decoder_layers: int = 3
    d_model: int = 256
    d_ff: int = 1024
    attention: AttentionConfig = field(default_factory=lambda: AttentionConfig(heads=4))
    encoder: AttentionConfig = field(default_factory=_softmax)  # what reads the source
    cross: AttentionConfig = field(default_factory=_softmax)  # what the target reads of it
    norm: str = "pre"  # where the layer norm stands: "pre", or "post" as in the first Transformer
    positions: str = "sinusoidal"  # or "none"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("vocab", "encoder_layers", "decoder_layers", "d_model", "d_ff"):
            at_least(name, getattr(self, name), 1)
        one_of("norm", self.norm, ("pre", "post"))
        one_of("positions", self.positions, ("none", "sinusoidal"))
        at_least("dropout", self.dropout, 0, below=1)

    @property
    def name(self) -> str:
        """For tables and legends: the decoder's rule, and what else is not softmax."""
        others = {n: getattr(self, n) for n in ("encoder", "cross")}
        own = [f"{n} {one.name}" for n, one in others.items() if one.rule != SOFTMAX]
        return ", ".join([self.attention.name, *own])

    def with_texts(self) -> NMTConfig:
        """The same with the texts of the rules in place of their names."""
        parts = {name: getattr(self, name).with_text() for name in ATTENTIONS}
        return replace(self, **parts)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> NMTConfig:
        values: dict[str, Any] = json.loads(text)
        for name in ATTENTIONS:
            values[name] = AttentionConfig(**values[name])
        return NMTConfig(**values)


ATTENTIONS = ("attention", "encoder", "cross")


class Residual(nn.Module):
    """The path around a layer: x + f(norm(x)), or norm(x + f(x))."""

    def __init__(self, config: NMTConfig) -> None:
        super().__init__()
        self.before = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def enter(self, x: Tensor) -> Tensor:
        """What f is given."""
        y: Tensor = self.norm(x) if self.before else x
        return y

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """x and what f made of it."""
        x = x + self.dropout(y)
        return x if self.before else self.norm(x)


class Feed(nn.Module):
    """The feed-forward layer with its residual path."""

    def __init__(self, config: NMTConfig) -> None:
        super().__init__()
        self.around = Residual(config)
        self.widen = nn.Linear(config.d_model, config.d_ff)
        self.narrow = nn.Linear(config.d_ff, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        h = self.dropout(F.relu(self.widen(self.around.enter(x))))
        return self.around.leave(x, self.narrow(h))


class EncoderLayer(nn.Module):
    """Source tokens read the memory of all of them, then a feed-forward layer."""

    def __init__(self, config: NMTConfig) -> None:
        super().__init__()
        self.around = Residual(config)
        self.attention = MemoryAttention(config.encoder, config.d_model)
        self.feed = Feed(config)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """[B, S, d], of which `real` [B, S] are no padding -> the same."""
        h = self.around.enter(x)
        x = self.around.leave(x, self.attention.read(h, self.attention.write(h, real)))
        y: Tensor = self.feed(x)
        return y


class DecoderLayer(nn.Module):
    """Causal self-attention, the source's memory, a feed-forward layer."""

    def __init__(self, config: NMTConfig) -> None:
        super().__init__()
        self.around, self.around_cross = Residual(config), Residual(config)
        self.attention = FastWeightAttention(config.attention, d_model=config.d_model)
        self.cross = MemoryAttention(config.cross, config.d_model)
        self.feed = Feed(config)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """[B, T, d] -> the same."""
        h, _ = self.attention(self.around.enter(x))
        return self._rest(self.around.leave(x, h), memory)

    def step(
        self, x: Tensor, memory: Memory, state: State | None, position: int
    ) -> tuple[Tensor, State]:
        """One token of each hypothesis: [N, d] -> the same and the states after it.

        The hypotheses of a sentence read one memory, as so many tokens would.
        """
        h, new = self.attention.step(self.around.enter(x), state, position)
        x = self.around.leave(x, h)
        sentences = next(iter(memory.values())).shape[0]
        return self._rest(x.view(sentences, -1, x.shape[-1]), memory).flatten(0, 1), new

    def _rest(self, x: Tensor, memory: Memory) -> Tensor:
        h = self.around_cross.enter(x)
        x = self.around_cross.leave(x, self.cross.read(h, memory))
        y: Tensor = self.feed(x)
        return y


class Translator(nn.Module):
    """Source and the target so far -> the distribution of the next target token.

    Both languages and the output share one embedding.
    """

    def __init__(self, config: NMTConfig) -> None:
        super().__init__()
        self.config = config
        d = config.d_model
        self.embedding = nn.Embedding(config.vocab, d)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        last = nn.LayerNorm if config.norm == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = last(d), last(d)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)

    def forward(
        self, source: Tensor, lengths: Tensor, target: Tensor, places: Tensor | None = None
    ) -> Tensor:
        """Source [B, S] of `lengths` [B] and what the decoder reads [B, T] -> scores [B, T, V] of
        each next token, or [n, V] for the n places that `places` [B, T] marks.
        """
        memories = self.encode(source, lengths)
        x = self._embed(target, 0)
        for layer, memory in zip(self.decoder, memories, strict=True):
            x = layer(x, memory)
        x = self.decoder_norm(x)
        return self._scores(x if places is None else x[places])

    def units(self) -> list[tuple[nn.Module, list[str]]]:
        """As that of the language model."""
        found: list[tuple[nn.Module, list[str]]] = [(layer, []) for layer in self.encoder]
        for layer in self._decoder():
            found += [(layer.attention, []), (layer.cross, ["write", "read"]), (layer.feed, [])]
        return found

    def encode(self, source: Tensor, lengths: Tensor) -> Memories:
        """Source [B, S] of `lengths` [B] -> what every decoder layer reads of it."""
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]  # [B, S]
        x = self._embed(source, 0)
        for layer in self.encoder:
            x = layer(x, real)
        x = self.encoder_norm(x)
        return [layer.cross.write(x, real) for layer in self._decoder()]

    def step(
        self, token: Tensor, memories: Memories, states: States | None = None, position: int = 0
    ) -> tuple[Tensor, States]:
        """One token of each hypothesis: [N] -> log-probabilities [N, V] of the next, and states."""
        x = self._embed(token[:, None], position)[:, 0]  # [N, d]
        new = []
        for i, (layer, memory) in enumerate(zip(self._decoder(), memories, strict=True)):
            x, state = layer.step(x, memory, states[i] if states else None, position)
            new.append(state)
        return F.log_softmax(self._scores(self.decoder_norm(x)).float(), -1), new

    def _decoder(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]

    def _embed(self, tokens: Tensor, position: int) -> Tensor:
        x = self.embedding(tokens) * math.sqrt(self.config.d_model)
        if self.config.positions == "sinusoidal":
            x = x + sinusoids(position, tokens.shape[1], self.config.d_model).to(x)
        y: Tensor = self.dropout(x)
        return y

    def _scores(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embedding.weight)


def select(tensors: list[dict[str, Tensor]], rows: Tensor) -> list[dict[str, Tensor]]:
    """The rows of states or memories that go on, in their new order."""
    return [{name: x.index_select(0, rows) for name, x in own.items()} for own in tensors]


def build(config: NMTConfig, tensors: Mapping[str, Tensor]) -> Translator:
    """A model for use, not for training, with the tensors of a checkpoint."""
    model = Translator(config)
    model.load_state_dict(dict(tensors))
    return model.eval()
