"""Token mixers: a compiled rule with the tensors it owns, and softmax attention beside it.

Both take inputs by name and carry a state, so a model never asks which one it has. The inputs are
made elsewhere, by `attention.FastWeightAttention` or by a task of its own kind.

Letters: B batch, T tokens, H heads, K key size, V value size, D one size for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fwgen

from . import conventions
from .attention_config import SOFTMAX, AttentionConfig, compiled
from .distributed import same_everywhere
from .settings import at_least

State = dict[str, Tensor]


class RuleMixer(nn.Module):
    """A compiled rule with the params and buffers it asks for.

    `inputs` maps each input to its sizes for one token and head, in the rule's order; `output` is
    the size of the output. Raises ArgumentError for a dim that nothing binds.
    """

    starts: Tensor  # sequences started, for the redraw of random features

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config
        self.op = compiled(config)
        rule = self.op.rule
        self.rule_name: str = rule.name
        known = {"K": config.d_key, "V": config.d_value, "D": config.d_value, **config.sizes}
        self.inputs = {name: _bind(name, dims, known) for name, dims in rule.inputs.items()}
        for name, activation in config.activations.items():
            if name not in self.inputs or activation not in conventions.ACTIVATIONS:
                raise fwgen.ArgumentError(
                    f"activations: expected one of {', '.join(self.inputs)} with one of "
                    f"{', '.join(conventions.ACTIVATIONS)}, found {name}={activation}"
                )
        self.activations = conventions.activations(rule.name, self.inputs, config.activations)
        own = dict(rule.params)
        own |= {s.name: rule.states[s.name] for s in self.op.signature.starts}  # learned states
        self.params = nn.ParameterDict()
        for name, dims in own.items():
            shape = (config.heads, *_bind(name, dims, known))
            self.params[name] = nn.Parameter(conventions.param_start(rule.name, name, shape))
        self.fixed = list(rule.buffers)
        for name, dims in rule.buffers.items():
            shape = (config.heads, *_bind(name, dims, known))
            self.register_buffer(f"fixed_{name}", conventions.draw_buffer(name, shape))
        self.register_buffer("starts", torch.zeros((), dtype=torch.int64))
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
        if state is None:
            self._redraw()
        y, after = self.op(
            *(inputs[name] for name in self.inputs),
            **self._own(position),
            initial_state=state,
            output_final_state=keep_state,
            form=self.config.form,
        )
        return y, after

    def step(
        self, inputs: Mapping[str, Tensor], state: State | None = None, position: int = 0
    ) -> tuple[Tensor, State]:
        """One token: inputs [B, H, *sizes] -> output [B, H, *output] and the new state."""
        if state is None:
            self._redraw()
        y, after = self.op.step(
            *(inputs[name] for name in self.inputs), **self._own(position), state=state
        )
        return y, after

    def last(
        self, inputs: Mapping[str, Tensor], state: State | None = None, position: int = 0
    ) -> Tensor:
        """The output at the last token only: [B, H, *output]."""
        y: Tensor = self(inputs, state, position)[0]
        return y[:, -1]

    def _own(self, position: int) -> dict[str, Any]:
        params = {
            name: conventions.in_range(self.rule_name, name, value)
            for name, value in self.params.items()
        }
        return {
            "params": params or None,
            "buffers": {name: getattr(self, f"fixed_{name}") for name in self.fixed} or None,
            "position": position if self.op.signature.uses_position else None,
            "backend": self.config.backend,
        }

    def _redraw(self) -> None:
        """The policy of random features, at the start of a sequence."""
        every = self.config.redraw
        if not (self.fixed and every and (self.training or self.config.redraw_in_eval)):
            return
        if int(self.starts) % every == 0:
            for name in self.fixed:
                buffer: Tensor = getattr(self, f"fixed_{name}")
                buffer.copy_(conventions.draw_buffer(name, tuple(buffer.shape)))
                same_everywhere(buffer)
        self.starts += 1

    @torch.no_grad()
    def _probe(self) -> tuple[int, ...]:
        """Sizes of the output, from one token through the plain PyTorch form."""
        token = [torch.zeros(1, 1, self.config.heads, *s) for s in self.inputs.values()]
        y, _ = self.op.reference(*token, **{**self._own(0), "backend": "reference"})
        return tuple(y.shape[3:])


class SoftmaxMixer(nn.Module):
    """Causal softmax attention; its state is every key and value that a later token will see."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        K, V = config.d_key, config.d_value
        self.config = config
        self.rule_name = SOFTMAX
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
        T, S, window = q.shape[2], k.shape[2], self.config.window or k.shape[2]
        if T == S <= window:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # query t is the token S - T + t of all that are there
            mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
            mask = mask.triu(S - T - window + 1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return y.transpose(1, 2), self._kept(k, v) if keep_state else None

    def step(
        self, inputs: Mapping[str, Tensor], state: State | None = None, position: int = 0
    ) -> tuple[Tensor, State]:
        """As `RuleMixer.step`; time and memory grow with the tokens before."""
        q, k, v = self._extend({name: x.unsqueeze(1) for name, x in inputs.items()}, state)
        return F.scaled_dot_product_attention(q, k, v)[:, :, 0], self._kept(k, v)

    def last(
        self, inputs: Mapping[str, Tensor], state: State | None = None, position: int = 0
    ) -> Tensor:
        """As `RuleMixer.last`, at the cost of one query."""
        q, k, v = self._extend(inputs, state)
        k, v = (x[:, :, -self.config.window :] for x in (k, v))  # -0: all
        return F.scaled_dot_product_attention(q[:, :, -1:], k, v)[:, :, 0]

    def _extend(
        self, inputs: Mapping[str, Tensor], state: State | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (inputs[name].transpose(1, 2) for name in ("q", "k", "v"))  # [B, H, T, *]
        if state is not None:
            k, v = torch.cat([state["k"], k], 2), torch.cat([state["v"], v], 2)
        return q, k, v

    def _kept(self, k: Tensor, v: Tensor) -> State:
        window = self.config.window
        first = max(0, k.shape[2] - window + 1) if window else 0
        return {"k": k[:, :, first:], "v": v[:, :, first:]}


Mixer = RuleMixer | SoftmaxMixer


def make_mixer(config: AttentionConfig) -> Mixer:
    """The softmax baseline for the name "softmax", else the compiled rule."""
    at_least("d_key", config.d_key, 1)
    at_least("d_value", config.d_value, 1)
    return SoftmaxMixer(config) if config.rule == SOFTMAX else RuleMixer(config)


def parted(
    mixer: Mixer, packed: Tensor, heads: int, names: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """[..., heads * sum of widths] -> inputs [..., heads, *sizes], for `names` or for all.

    The heads of an input lie side by side, one input after another: pieces of whole cache lines.
    """
    names = list(mixer.inputs) if names is None else names
    sizes = [mixer.inputs[name] for name in names]
    parts = torch.split(packed, [heads * math.prod(s) for s in sizes], dim=-1)
    lead = packed.shape[:-1]
    return {n: x.view(*lead, heads, *s) for n, x, s in zip(names, parts, sizes, strict=True)}


def activate(
    mixer: Mixer,
    parts: Mapping[str, Tensor],
    bias: Mapping[str, Tensor] | nn.ParameterDict | None = None,
) -> dict[str, Tensor]:
    """Projected inputs [..., *sizes] -> the same with the range that the rule expects.

    `bias` [H, *sizes] in float32 makes its gates float32 whatever the projection has: a decay is
    multiplied up over many tokens.
    """
    inputs = {}
    for name, part in parts.items():
        if bias and name in bias:
            part = part + bias[name]
        inputs[name] = conventions.ACTIVATIONS[mixer.activations[name]](part)
    return conventions.tie(mixer.rule_name, inputs)


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
