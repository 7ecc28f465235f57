"""A decoder-only Transformer language model whose attention is any rule, or softmax.

Letters: B batch, T tokens, d features, V vocabulary. A state is a list with one dict per layer;
it has a fixed size for a rule and grows with the tokens for softmax.
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
from .mixer import State
from .output import AdaptiveSoftmax, Softmax
from .settings import at_least, one_of

States = list[State]


@dataclass(frozen=True)
class LMConfig:
    """The shape of a model."""

    vocab: int = 256
    layers: int = 4
    d_model: int = 128
    d_ff: int = 512
    attention: AttentionConfig = field(default_factory=lambda: AttentionConfig(heads=4))
    norm: str = "pre"  # where the layer norm stands: "pre", or "post" as in the first Transformer
    positions: str = "none"  # or "sinusoidal" (added to the embedding) or "rotary"
    feed: str = "gelu"  # activation of the feed-forward layer, or "relu"
    output: str = "tied"  # or "untied" or "adaptive" (tied; needs a vocabulary by frequency)
    cutoffs: tuple[int, ...] = ()  # of the adaptive softmax
    dropout: float = 0.0
    init: float = 0.0  # standard deviation of the weights; 0: d_model ** -0.5

    def __post_init__(self) -> None:
        for name in ("vocab", "layers", "d_model", "d_ff"):
            at_least(name, getattr(self, name), 1)
        one_of("norm", self.norm, ("pre", "post"))
        one_of("positions", self.positions, ("none", "sinusoidal", "rotary"))
        one_of("feed", self.feed, ("gelu", "relu"))
        one_of("output", self.output, ("tied", "untied", "adaptive"))
        at_least("dropout", self.dropout, 0, below=1)
        at_least("init", self.init, 0)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str, rule: str | None = None) -> LMConfig:
        """`rule` is the text of the rule, with maps and constants put in, in place of its name."""
        values: dict[str, Any] = json.loads(text)
        attention = AttentionConfig(**values.pop("attention"))
        if attention.rule != SOFTMAX and rule is not None:
            attention = replace(attention, rule=rule, maps={}, constants={})
        values["cutoffs"] = tuple(values["cutoffs"])
        return LMConfig(**values, attention=attention)


class Block(nn.Module):
    """Attention, then a feed-forward layer; a residual path around each."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        d = config.d_model
        self.before = config.norm == "pre"
        attention = replace(config.attention, rotary=config.positions == "rotary")
        self.attention = FastWeightAttention(attention, d_model=d)
        self.norm_attention, self.norm_feed = nn.LayerNorm(d), nn.LayerNorm(d)
        self.widen, self.narrow = nn.Linear(d, config.d_ff), nn.Linear(config.d_ff, d)
        self.activation = F.gelu if config.feed == "gelu" else F.relu
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, state: State | None, position: int, keep_state: bool
    ) -> tuple[Tensor, State | None]:
        """[B, T, d] -> the same and the layer's state."""
        h = self.norm_attention(x) if self.before else x
        h, state = self.attention(h, state, position, keep_state)
        return self._rest(x, h), state

    def step(self, x: Tensor, state: State | None, position: int) -> tuple[Tensor, State]:
        """[B, d] -> the same and the layer's state."""
        h = self.norm_attention(x) if self.before else x
        h, new = self.attention.step(h, state, position)
        return self._rest(x, h), new

    def _rest(self, x: Tensor, h: Tensor) -> Tensor:
        """The residual around attention, and the feed-forward layer."""
        x = x + self.dropout(h)
        if self.before:
            return x + self._feed(self.norm_feed(x))
        x = self.norm_attention(x)
        y: Tensor = self.norm_feed(x + self._feed(x))
        return y

    def _feed(self, x: Tensor) -> Tensor:
        y: Tensor = self.dropout(self.narrow(self.dropout(self.activation(self.widen(x)))))
        return y


class LanguageModel(nn.Module):
    """Tokens -> the distribution of the next one."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config = config
        d, V = config.d_model, config.vocab
        self.embedding = nn.Embedding(V, d)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(d) if config.norm == "pre" else nn.Identity()
        self.output: Softmax | AdaptiveSoftmax
        if config.output == "adaptive":
            self.output = AdaptiveSoftmax(V, d, config.cutoffs)
        else:
            self.output = Softmax(V, d, config.output == "tied")
        std = config.init or d**-0.5
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        state: States | None = None,
        position: int = 0,
        keep_state: bool = False,
    ) -> tuple[Tensor, States | None]:
        """Tokens [B, T] -> log-probabilities [B, T, V], or with `targets` [B, T] the negative
        log-likelihood of each, [B, T]; and the states after the last token.

        `state` continues an earlier call, `position` is then the number of tokens before.
        """
        x, after = self.read(tokens, state, position, keep_state)
        weight = self.embedding.weight
        if targets is None:
            return self.output.log_probs(x, weight), after
        nll = self.output.nll(x.flatten(0, 1), weight, targets.flatten())
        return nll.view_as(targets), after

    def units(self) -> list[tuple[nn.Module, list[str]]]:
        """Parts whose weights are needed together, and what they are called by besides forward."""
        return [(block, []) for block in self.blocks]

    def read(
        self, tokens: Tensor, state: States | None, position: int, keep_state: bool = True
    ) -> tuple[Tensor, States | None]:
        """Tokens [B, T] -> features [B, T, d] and the states after them, no distribution."""
        x = self._embed(tokens, position)
        new: States = []
        for i, block in enumerate(self.blocks):
            x, own = block(x, state[i] if state else None, position, keep_state)
            new += [own] if own is not None else []
        return self.norm(x), new if keep_state else None

    def step(
        self, token: Tensor, state: States | None = None, position: int = 0
    ) -> tuple[Tensor, States]:
        """One token per sequence: [B] -> log-probabilities [B, V] and the states after it."""
        x = self._embed(token[:, None], position)[:, 0]  # [B, d]
        new = []
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x, own = block.step(x, state[i] if state else None, position)
            new.append(own)
        return self.output.log_probs(self.norm(x), self.embedding.weight), new

    def _embed(self, tokens: Tensor, position: int) -> Tensor:
        x = self.embedding(tokens) * math.sqrt(self.config.d_model)
        if self.config.positions == "sinusoidal":
            x = x + sinusoids(position, tokens.shape[1], self.config.d_model).to(x)
        y: Tensor = self.dropout(x)
        return y


def sinusoids(start: int, length: int, d_model: int) -> Tensor:
    """[length, d]: sines of t / 10000^(2 i / d), then as many cosines."""
    rates = 10_000.0 ** -(torch.arange(0, d_model, 2) / d_model)
    angles = torch.arange(start, start + length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :d_model]


def detach(states: States | None) -> States | None:
    """Cut the graph: gradients end at the segment."""
    return states and [{name: x.detach() for name, x in own.items()} for own in states]


def state_tensors(states: States | None) -> dict[str, Tensor]:
    """Flat, for a checkpoint: `layer.name`."""
    pairs = enumerate(states or [])
    return {f"{layer}.{name}": x for layer, own in pairs for name, x in own.items()}


def states_from(tensors: Mapping[str, Tensor], device: str) -> States | None:
    """What `state_tensors` took apart."""
    states: dict[int, State] = {}
    for key, tensor in tensors.items():
        layer, name = key.split(".", 1)
        states.setdefault(int(layer), {})[name] = tensor.to(device)
    return [states[layer] for layer in sorted(states)] or None


def build(config: LMConfig, tensors: Mapping[str, Tensor]) -> LanguageModel:
    """A model for use, not for training, with the tensors of a checkpoint."""
    model = LanguageModel(config)
    model.load_state_dict(dict(tensors))
    return model.eval()
