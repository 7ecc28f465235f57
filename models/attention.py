"""Attention layers over compiled rules.

`RuleMixer` runs any rule: it binds the sizes, owns the rule's params and buffers, and says which
inputs the rule wants. `SoftmaxMixer` is the baseline behind the same interface.
`FastWeightAttention` makes those inputs from token features by one projection.

Letters: B batch, T tokens, H heads, K key size, V value size, D one size for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fwgen

State = dict[str, Tensor]


@dataclass(frozen=True)
class AttentionConfig:
    """What a mixer is made of; `rule` is a path, a shipped name, or "softmax"."""

    rule: str = "delta"
    maps: Mapping[str, str] = field(default_factory=dict)  # {"phi": "dpfp(x, nu=2)"}
    constants: Mapping[str, float] = field(default_factory=dict)  # {"nu": 2}
    heads: int = 1
    d_key: int = 64  # binds K
    d_value: int = 64  # binds V, and D of rules with square states
    sizes: Mapping[str, int] = field(default_factory=dict)  # other dims: {"M": 64} features, ...
    activations: Mapping[str, str] = field(default_factory=dict)  # by input: {"beta": "2 sigmoid"}
    redraw: int = 0  # draw random features anew every n-th sequence start; 0: once, at the start
    backend: str = "auto"
    form: str = "auto"


# A rule takes activated values: a write strength in [0, 1], a log-decay at most 0.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "sigmoid": torch.sigmoid,
    "2 sigmoid": lambda x: 2 * torch.sigmoid(x),
    "logsigmoid": F.logsigmoid,
    "logsigmoid/16": lambda x: F.logsigmoid(x) / 16,
    "softplus": F.softplus,
    "tanh": torch.tanh,
}

# What the field calls its gates. A rule whose gate depends on its state takes pre-activations.
GATES = {
    "alpha": "sigmoid",
    "beta": "sigmoid",
    "betar": "sigmoid",
    "eta": "sigmoid",
    "theta": "sigmoid",
    "dt": "softplus",
    "g": "logsigmoid/16",
    "gv": "logsigmoid/16",
    "mu": "logsigmoid",
}
GATES_OF_RULE: dict[str, dict[str, str]] = {
    "recurrent_delta": {"beta": "none"},
    "galite": {"beta": "none"},
    "agalite": {"beta": "none"},
    "rfa_gated": {"a": "sigmoid"},
    "hgrn2": {"f": "sigmoid"},
    "gdn2": {"b": "sigmoid", "w": "sigmoid"},
    "longhorn": {"beta": "sigmoid"},
    "cosformer": {"p": "sigmoid"},
}


class RuleMixer(nn.Module):
    """A compiled rule with the tensors it owns.

    `inputs` maps each input to its sizes for one token and head, in the rule's order; `output` is
    the size of the output. Raises ArgumentError for a dim that nothing binds.
    """

    calls: Tensor  # sequences started, for the redraw of random features

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config
        constants = dict(config.constants) or None
        self.op = fwgen.compile(config.rule, set=constants, maps=dict(config.maps) or None)
        rule = self.op.rule
        known = {"K": config.d_key, "V": config.d_value, "D": config.d_value, **config.sizes}
        self.inputs = {name: _bind(name, dims, known) for name, dims in rule.inputs.items()}
        for name, activation in config.activations.items():
            if name not in self.inputs or activation not in ACTIVATIONS:
                raise fwgen.ArgumentError(
                    f"activations: expected one of {', '.join(self.inputs)} with one of "
                    f"{', '.join(ACTIVATIONS)}, found {name}={activation}"
                )
        gates = GATES | GATES_OF_RULE.get(rule.name, {}) | dict(config.activations)
        self.activations = {name: gates.get(name, "none") for name in self.inputs}

        own = dict(rule.params)
        own |= {s.name: rule.states[s.name] for s in self.op.signature.starts}  # learned states
        self.params = nn.ParameterDict()
        for name, dims in own.items():
            sizes = _bind(name, dims, known)
            scale = 1 / math.sqrt(sizes[-1]) if len(sizes) > 1 else 0.0
            self.params[name] = nn.Parameter(scale * torch.randn(config.heads, *sizes))
        self.random = {name: _bind(name, dims, known) for name, dims in rule.buffers.items()}
        for name in self.random:
            self.register_buffer(f"random_{name}", self._draw(name))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.output = self._probe()

    def forward(
        self,
        inputs: Mapping[str, Tensor],
        state: State | None = None,
        position: int = 0,
        keep_state: bool = False,
    ) -> tuple[Tensor, State | None]:
        """Inputs [B, T, H, *sizes] (one head is shared by all) -> output [B, T, H, *output].

        `state` continues an earlier call, `position` is then the number of tokens before.
        """
        if state is None and self.random and self.config.redraw:
            self._redraw()
        return self.op(
            *(inputs[name] for name in self.inputs),
            params=dict(self.params.items()) or None,
            buffers=self._features(),
            initial_state=state,
            output_final_state=keep_state,
            position=position or None,
            form=self.config.form,
            backend=self.config.backend,
        )

    def last(
        self, inputs: Mapping[str, Tensor], state: State | None = None, position: int = 0
    ) -> Tensor:
        """The output at the last token only: [B, H, *output]."""
        return self(inputs, state, position)[0][:, -1]

    def _features(self) -> dict[str, Tensor] | None:
        return {name: getattr(self, f"random_{name}") for name in self.random} or None

    def _draw(self, name: str) -> Tensor:
        heads, sizes = self.config.heads, self.random[name]
        if name.endswith("omega") and len(sizes) == 2:
            from fwgen.features import orthogonal_random_features

            return orthogonal_random_features(heads, *sizes)
        return torch.randn(heads, *sizes)

    def _redraw(self) -> None:
        if int(self.calls) % self.config.redraw == 0:
            for name in self.random:
                getattr(self, f"random_{name}").copy_(self._draw(name))
        self.calls += 1

    @torch.no_grad()
    def _probe(self) -> tuple[int, ...]:
        """Sizes of the output, from one token through the plain PyTorch form."""
        token = [torch.zeros(1, 1, self.config.heads, *s) for s in self.inputs.values()]
        params = dict(self.params.items()) or None
        y, _ = self.op.reference(*token, params=params, buffers=self._features())
        return tuple(y.shape[3:])


class SoftmaxMixer(nn.Module):
    """Causal softmax attention; its state is every key and value so far."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        K, V = config.d_key, config.d_value
        self.inputs: dict[str, tuple[int, ...]] = {"q": (K,), "k": (K,), "v": (V,)}
        self.activations = dict.fromkeys(self.inputs, "none")
        self.output = (V,)

    def forward(
        self,
        inputs: Mapping[str, Tensor],
        state: State | None = None,
        position: int = 0,
        keep_state: bool = False,
    ) -> tuple[Tensor, State | None]:
        """As `RuleMixer.forward`."""
        q, k, v = self._extend(inputs, state)
        T, S = q.shape[2], k.shape[2]
        # Query t sees everything from earlier calls and the tokens up to its own.
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return y.transpose(1, 2), {"k": k, "v": v} if keep_state else None

    def last(
        self, inputs: Mapping[str, Tensor], state: State | None = None, position: int = 0
    ) -> Tensor:
        """As `RuleMixer.last`, at the cost of one query."""
        q, k, v = self._extend(inputs, state)
        return F.scaled_dot_product_attention(q[:, :, -1:], k, v)[:, :, 0]

    def _extend(
        self, inputs: Mapping[str, Tensor], state: State | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (inputs[name].transpose(1, 2) for name in ("q", "k", "v"))  # [B, H, T, *]
        if state is not None:
            k, v = torch.cat([state["k"], k], 2), torch.cat([state["v"], v], 2)
        return q, k, v


Mixer = RuleMixer | SoftmaxMixer


def make_mixer(config: AttentionConfig) -> Mixer:
    """The softmax baseline for the name "softmax", else the compiled rule."""
    return SoftmaxMixer(config) if config.rule == "softmax" else RuleMixer(config)


class FastWeightAttention(nn.Module):
    """Token features -> every input of the rule -> rule -> token features.

    Example: `FastWeightAttention(256, AttentionConfig("delta", heads=4, d_key=64, d_value=64))`.
    """

    def __init__(self, d_model: int, config: AttentionConfig, bias: bool = False) -> None:
        super().__init__()
        self.mixer = make_mixer(config)
        self.heads = config.heads
        self.widths = [math.prod(sizes) for sizes in self.mixer.inputs.values()]
        self.project = nn.Linear(d_model, self.heads * sum(self.widths), bias=bias)
        self.merge = nn.Linear(self.heads * math.prod(self.mixer.output), d_model, bias=bias)

    def forward(
        self, x: Tensor, state: State | None = None, position: int = 0, keep_state: bool = False
    ) -> tuple[Tensor, State | None]:
        """[B, T, d_model] -> the same and, if `keep_state`, the state after the last token."""
        B, T, _ = x.shape
        packed = self.project(x).view(B, T, self.heads, -1)  # [B, T, H, sum of widths]
        inputs = split_inputs(packed, self.mixer)
        y, state = self.mixer(inputs, state, position, keep_state)
        return self.merge(y.reshape(B, T, -1)), state


def split_inputs(packed: Tensor, mixer: Mixer, names: list[str] | None = None) -> dict[str, Tensor]:
    """[..., sum of widths] -> the activated inputs [..., *sizes], for `names` or for all."""
    names = list(mixer.inputs) if names is None else names
    parts = packed.split([math.prod(mixer.inputs[name]) for name in names], dim=-1)
    inputs = {}
    for name, part in zip(names, parts, strict=True):
        part = ACTIVATIONS[mixer.activations[name]](part)
        inputs[name] = part.reshape(*packed.shape[:-1], *mixer.inputs[name])
    return inputs


def _bind(name: str, dims: tuple[Any, ...], known: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes of a tensor; a dim such as `rfa_M` is also found by its last part, `M`."""
    values = dict(known)
    for free in {free for dim in dims for free in dim.names} - values.keys():
        short = free.rsplit("_", 1)[-1]
        if short not in values:
            raise fwgen.ArgumentError(
                f"`{name}` has the dim `{free}`, which nothing binds; expected an entry in "
                f"sizes, such as {{'{free}': 64}} (command line: --dim {free}=64)"
            )
        values[free] = values[short]
    return tuple(dim.evaluate(values) for dim in dims)
