"""`FastWeightAttention`: token features -> the inputs of a rule -> the rule -> token features.

Letters: B batch, T tokens, H heads, P the widths of all inputs that are no gate, of all heads, W
those of all inputs that are projected at once.
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
from .attention_config import AttentionConfig
from .mixer import State, activate, make_mixer, parted

TAIL = "conv.tail"  # no state of a rule can have a dot in its name
TURNED = ("q", "k", "r", "C", "B")  # what rules call their queries and keys


class FastWeightAttention(nn.Module):
    """A layer over any rule, by name, path or text, or over "softmax".

    Every declared input of the rule is a projection of the features: gates get their range and a
    bias that starts at a sensible memory (see `conventions`), params and buffers are owned by the
    layer, random features are redrawn by the config's policy.

        layer = FastWeightAttention("delta", {"phi": "elu1(x)"}, d_model=256, heads=4)
        y, _ = layer(x)                                        # [B, T, 256]
        y, state = layer(x, keep_state=True)                   # ... and what the tokens left
        y, state = layer(more, state, position=x.shape[1], keep_state=True)
        y_t, state = layer.step(x_t, state, position=t)        # one token, [B, 256]
    """

    def __init__(
        self,
        rule: str | AttentionConfig,
        maps: Mapping[str, str] | None = None,
        *,
        d_model: int,
        **options: Any,  # fields of AttentionConfig
    ) -> None:
        super().__init__()
        config = rule
        if not isinstance(config, AttentionConfig):
            config = AttentionConfig(config, maps or {}, **options)
        config = config.for_width(d_model)
        self.config = config
        self.mixer = make_mixer(config)
        H, inputs = config.heads, self.mixer.inputs
        self.bias = nn.ParameterDict()
        for name, sizes in inputs.items():
            start = conventions.start_of(self.mixer.rule_name, name, (H, *sizes))
            if start is not None:
                self.bias[name] = nn.Parameter(start.clone())
        # Gates come after what is convolved, and those of one number per head last of all: a matrix
        # product of their own leaves the rows of the large one on whole cache lines.
        self.plain = [name for name in inputs if name not in self.bias]
        self.wide = [name for name in self.bias if inputs[name]]
        self.narrow = [name for name in self.bias if not inputs[name]]
        out = H * math.prod(self.mixer.output)
        widths = [self._width(names) for names in (self.plain, self.wide)]  # P first
        self.widths = [*widths, out if config.out_gate else 0]
        self.rows = [sum(self.widths), self._width(self.narrow)]  # W first
        self.project = nn.Linear(d_model, sum(self.rows), bias=False)
        self.merge = nn.Linear(out, d_model, bias=False)
        self.norm = nn.RMSNorm(out // H, eps=1e-5) if config.out_norm else None
        taps = _first_taps(config.short_conv, self.widths[0]) if config.short_conv else None
        self.taps = None if taps is None else nn.Parameter(taps)
        if config.rotary:
            self.turned = self._turned(config.d_key)

    def forward(
        self, x: Tensor, state: State | None = None, position: int = 0, keep_state: bool = False
    ) -> tuple[Tensor, State | None]:
        """[B, T, d_model] -> the same and, if `keep_state`, the state after the last token.

        `state` continues an earlier call; `position` is then the number of tokens before.
        """
        inputs, gate, tail = self._inputs(x, state, position)
        y, new = self.mixer(inputs, _without_tail(state), position, keep_state)
        if new is not None and tail is not None:
            new = {**new, TAIL: tail}
        return self._output(y, gate), new

    def step(self, x: Tensor, state: State | None, position: int = 0) -> tuple[Tensor, State]:
        """One token: [B, d_model] -> the same and the new state."""
        inputs, gate, tail = self._inputs(x.unsqueeze(1), state, position)
        inputs = {name: value.squeeze(1) for name, value in inputs.items()}
        y, new = self.mixer.step(inputs, _without_tail(state), position)
        if tail is not None:
            new = {**new, TAIL: tail}
        return self._output(y.unsqueeze(1), gate).squeeze(1), new

    def _inputs(
        self, x: Tensor, state: State | None, position: int
    ) -> tuple[dict[str, Tensor], Tensor | None, Tensor | None]:
        """Inputs [B, T, H, *sizes], the output's gate [B, T, H * out], the convolution's tail."""
        heads, gate, tail = self.config.heads, None, None
        large, small = torch.split(self.project.weight, self.rows)
        plain = F.linear(x, large)  # [B, T, W]
        parts = {}
        if self.taps is not None or self.widths[0] < self.rows[0]:
            plain, wide, out = torch.split(plain, self.widths, -1)
            parts = parted(self.mixer, wide, heads, self.wide)
            gate = out if self.config.out_gate else None
        if self.taps is not None:
            plain, tail = _convolve(plain, self.taps, state[TAIL] if state else None)
        parts |= parted(self.mixer, plain, heads, self.plain)
        if self.narrow:
            parts |= parted(self.mixer, F.linear(x, small), heads, self.narrow)
        inputs = activate(self.mixer, parts, self.bias)
        if self.config.rotary:
            for name in self.turned:
                inputs[name] = turn(inputs[name], position)
        return inputs, gate, tail

    def _output(self, y: Tensor, gate: Tensor | None) -> Tensor:
        """[B, T, H, *output] -> [B, T, d_model]."""
        B, T, H = y.shape[:3]
        y = y.reshape(B, T, H, -1)
        if self.config.scale != 1:
            y = y * self.config.scale
        if self.norm is not None:
            y = self.norm(y)
        if gate is not None:
            y = y * F.silu(gate).view_as(y)
        return self.merge(y.flatten(2))  # type: ignore[no-any-return]

    def _width(self, names: Sequence[str]) -> int:
        return self.config.heads * sum(math.prod(self.mixer.inputs[name]) for name in names)

    def _turned(self, d_key: int) -> list[str]:
        found = [n for n, sizes in self.mixer.inputs.items() if n in TURNED and sizes == (d_key,)]
        if len(found) < 2 or d_key % 2:
            raise fwgen.ArgumentError(
                f"rotary: expected a query and a key of one even size, {self.mixer.rule_name} has "
                + ", ".join(f"{n} {list(s)}" for n, s in self.mixer.inputs.items())
            )
        return found


def turn(x: Tensor, position: int, base: float = 10_000.0) -> Tensor:
    """Rotary positions: x [B, T, H, K], both halves turned by t / base^(2 i / K)."""
    T, half = x.shape[1], x.shape[-1] // 2
    rates = base ** -(torch.arange(half, device=x.device) / half)
    times = torch.arange(position, position + T, device=x.device)
    angle = (times[:, None] * rates)[:, None]  # [T, 1, K/2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def _first_taps(count: int, width: int) -> Tensor:
    """[count, P]: the current token passes, the ones before it start near zero."""
    taps = torch.randn(count, width) * 0.02
    taps[-1:] += 1
    return taps


def _convolve(x: Tensor, taps: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """silu of a causal convolution per channel: x [B, T, P], taps [n, P].

    `before` holds the n - 1 tokens that came earlier, zeros if there were none; the second result
    is what the next call needs.
    """
    B, T, P = x.shape
    n = len(taps)
    if before is None:
        before = x.new_zeros(B, n - 1, P)
    whole = torch.cat([before, x], 1)  # [B, n - 1 + T, P]
    y = whole[:, :T] * taps[0]
    for i in range(1, n):
        y = y + whole[:, i : i + T] * taps[i]
    return F.silu(y), whole[:, T:]


def _without_tail(state: State | None) -> State | None:
    """The part of the layer's state that is the rule's."""
    if state is None or TAIL not in state:
        return state
    return {name: value for name, value in state.items() if name != TAIL}
