"""Attention to another sequence: softmax, or a memory of fixed size that a rule has written.

Both write once over the source and are read by every target token; a memory is a dict of tensors
with the batch first. That of softmax holds all keys and values, so reading it costs time and space
in proportion to the source. That of a rule is the rule's state after the source: reading costs the
same whatever the source's length. A source that reads the memory of itself has bidirectional
attention.

Letters: B batch, S source tokens, T target tokens, N source tokens without padding, H heads,
d features, K key size, V value size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import torch.nn.functional as F
import yaml
from torch import Tensor, nn

import fwgen

from . import conventions
from .attention_config import SOFTMAX, AttentionConfig, compiled
from .mixer import Mixer, RuleMixer, SoftmaxMixer, State, activate, parted

Memory = dict[str, Tensor]


class SoftmaxMemory(SoftmaxMixer):
    """Keys and values of the source, and which of them are padding."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.asked, self.written = ["q"], ["k", "v"]

    def write(self, inputs: State, real: Tensor) -> Memory:
        """Inputs [N, H, *sizes] of the tokens that `real` [B, S] marks."""
        places = real.nonzero(as_tuple=True)
        memory = {"mask": real[:, None, None]}  # [B, 1, 1, S]
        for name, x in inputs.items():
            padded = x.new_zeros(*real.shape, *x.shape[1:]).index_put(places, x)
            memory[name] = padded.transpose(1, 2)  # [B, H, S, *]
        return memory

    def read(self, inputs: State, memory: Memory) -> Tensor:
        """Inputs [B, T, H, *sizes] -> [B, T, H, V]."""
        q = inputs["q"].transpose(1, 2)
        k, v, mask = memory["k"], memory["v"], memory["mask"]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


class RuleMemory(RuleMixer):
    """The state of a rule after the source, read by the rule's own output.

    `written` are the inputs of the update, `asked` those of the output; one that both name has a
    value for each. Raises ArgumentError for a rule whose output needs more than states and queries.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        rule = self.op.rule
        self.written = [name for name in self.inputs if name in _words(rule.update)]
        self.asked = [name for name in self.inputs if name in _words(rule.output)]
        text = reading_rule(rule)
        try:
            self.reader = compiled(replace(config, rule=text, maps={}, constants={}))
        except fwgen.RuleError:  # no query, or a part of the update is used
            self.reader = None
        if self.reader is None or self.reader.signature.uses_position:
            raise fwgen.ArgumentError(
                f"memory: expected a rule whose output is made of its states and a query, that of "
                f"{rule.name} is `{rule.output.strip()}`"
            )

    def write(self, inputs: State, real: Tensor) -> Memory:
        """Inputs [N, H, *sizes] of the tokens that `real` [B, S] marks.

        The sequences follow each other without padding, so there is none to be written.
        """
        self._redraw()
        ends = F.pad(real.sum(1).cumsum(0), (1, 0)).int()  # [B + 1]
        some = next(iter(inputs.values()))
        nothing = some.new_ones(())  # what is only asked for does not change the state
        packed = [
            inputs[name].unsqueeze(0)
            if name in inputs
            else nothing.expand(1, len(some), self.config.heads, *sizes)
            for name, sizes in self.inputs.items()
        ]
        own, form = self._own(0), self.config.form
        _, state = self.op(*packed, **own, cu_seqlens=ends, output_final_state=True, form=form)
        return state  # type: ignore[no-any-return]

    def read(self, inputs: State, memory: Memory) -> Tensor:
        """Inputs [B, T, H, *sizes] -> [B, T, H, *output]."""
        own, rule = self._own(0), self.reader.rule
        y, _ = self.reader(
            *(inputs[name] for name in self.asked),
            params={name: own["params"][name] for name in rule.params} or None,
            buffers={name: own["buffers"][name] for name in rule.buffers} or None,
            initial_state=memory,
            backend=self.config.backend,
        )
        return y  # type: ignore[no-any-return]


class MemoryAttention(nn.Module):
    """Token features that read a memory of other token features, over any rule or "softmax".

    attention = MemoryAttention(AttentionConfig("delta", heads=4), d_model=256)
    memory = attention.write(source, real)  # [B, S, 256], real [B, S] marks what is no padding
    y = attention.read(x, memory)           # [B, T, 256]
    """

    def __init__(self, config: AttentionConfig, d_model: int) -> None:
        super().__init__()
        if config.short_conv or config.out_gate or config.rotary:
            raise fwgen.ArgumentError(
                "memory: short_conv, out_gate and rotary are options of self-attention"
            )
        self.config = config = config.for_width(d_model)
        self.mixer = SoftmaxMemory(config) if config.rule == SOFTMAX else RuleMemory(config)
        self.to_write = Inputs(self.mixer, self.mixer.written, d_model)
        self.to_ask = Inputs(self.mixer, self.mixer.asked, d_model)
        out = math.prod(self.mixer.output)
        self.norm = nn.RMSNorm(out, eps=1e-5) if config.out_norm else None
        self.merge = nn.Linear(config.heads * out, d_model, bias=False)

    def write(self, source: Tensor, real: Tensor) -> Memory:
        """Features [B, S, d] of which `real` [B, S] are no padding -> the memory."""
        return self.mixer.write(self.to_write(source[real], self.mixer), real)

    def read(self, x: Tensor, memory: Memory) -> Tensor:
        """Features [B, T, d] -> the same."""
        y = self.mixer.read(self.to_ask(x, self.mixer), memory)
        y = y.flatten(3) if y.ndim > 3 else y.unsqueeze(3)  # [B, T, H, out]
        if self.config.scale != 1:
            y = y * self.config.scale
        if self.norm is not None:
            y = self.norm(y)
        return self.merge(y.flatten(2))  # type: ignore[no-any-return]


class Inputs(nn.Module):
    """Features [..., d] -> some inputs of a rule, [..., H, *sizes], with the range they need."""

    def __init__(self, mixer: Mixer, names: Sequence[str], d_model: int) -> None:
        super().__init__()
        self.names, self.heads = list(names), mixer.config.heads
        width = sum(math.prod(mixer.inputs[name]) for name in names)
        self.project = nn.Linear(d_model, self.heads * width, bias=False)
        self.bias = nn.ParameterDict()
        for name in names:
            shape = (self.heads, *mixer.inputs[name])
            start = conventions.start_of(mixer.rule_name, name, shape)
            if start is not None:
                self.bias[name] = nn.Parameter(start.clone())

    def forward(self, x: Tensor, mixer: Mixer) -> State:
        parts = parted(mixer, self.project(x), self.heads, self.names)
        return activate(mixer, parts, self.bias)


def reading_rule(rule: fwgen.Rule) -> str:
    """The part of a rule that only reads: its states, its output, an update that changes nothing.

    The inputs are those that the output names; it starts from states that the rule has written.
    """
    parts = yaml.load(rule.to_yaml(), Loader=yaml.BaseLoader)  # all scalars are texts, as in rules
    asked = {n: dims for n, dims in parts["inputs"].items() if n in _words(rule.output)}
    states = {n: s["dims"] if isinstance(s, dict) else s for n, s in parts["state"].items()}
    changes = {
        "name": parts["name"][:59] + "_read",
        "inputs": asked,
        "state": states,
        "update": "".join(f"{name} = {name}\n" for name in states),
    }
    text: str = yaml.dump({**parts, **changes}, Dumper=_Dumper, sort_keys=False, width=2**16)
    return text


class _Dumper(yaml.SafeDumper):
    """Texts of several lines are written as blocks."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def _words(text: str) -> set[str]:
    """The names in a formula."""
    return set(re.findall(r"[A-Za-z_]\w*", text))
