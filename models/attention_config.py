"""What a mixer and the layer around it are made of, and the rule that it names, compiled."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fwgen

from .settings import at_least

SOFTMAX = "softmax"


@dataclass(frozen=True)
class AttentionConfig:
    """What a mixer and the layer around it are made of."""

    rule: str = "delta"  # a path, a shipped name, the text of a rule file, or "softmax"
    maps: Mapping[str, str] = field(default_factory=dict)  # {"phi": "sum_normalize(dpfp(x, nu=2))"}
    constants: Mapping[str, float] = field(default_factory=dict)  # {"nu": 2}
    heads: int = 1
    d_key: int = 0  # binds K; 0: the layer's d_model / heads
    d_value: int = 0  # binds V, and D of rules with square states; 0: as d_key
    sizes: Mapping[str, int] = field(default_factory=dict)  # other dims: {"M": 64} features, ...
    activations: Mapping[str, str] = field(default_factory=dict)  # by input: {"beta": "2 sigmoid"}
    redraw: int = 0  # draw random features anew every n-th sequence start; 0: once, at the start
    redraw_in_eval: bool = False  # else evaluation keeps the features of the last training step
    window: int = 0  # softmax: tokens that one sees, itself included; 0: all before it
    # What the layer puts around the mixer.
    short_conv: int = 0  # taps of a causal convolution on what is no gate; 0: none
    out_norm: bool = False  # RMS norm of each head's output
    out_gate: bool = False  # multiply the output by silu of a projection
    scale: float = 1.0  # of the output
    rotary: bool = False  # turn queries and keys by their position
    backend: str = "auto"
    form: str = "auto"

    def __post_init__(self) -> None:
        at_least("heads", self.heads, 1)
        for name in ("d_key", "d_value", "redraw", "window", "short_conv"):
            at_least(name, getattr(self, name), 0)
        for name, size in self.sizes.items():
            at_least(f"sizes[{name}]", size, 1)

    @property
    def name(self) -> str:
        """For tables and legends: the rule, with its map and constants where they were given."""
        if "\n" in self.rule:
            name: str = compiled(self).rule.name
            return name
        extra = [*self.maps.values(), *(f"{n}={v:g}" for n, v in self.constants.items())]
        return Path(self.rule).stem + (f" [{', '.join(extra)}]" if extra else "")

    def for_width(self, d_model: int) -> AttentionConfig:
        """The same with the sizes of keys and values that were left open."""
        d_key = self.d_key or max(1, d_model // self.heads)
        return replace(self, d_key=d_key, d_value=self.d_value or d_key)

    def with_text(self) -> AttentionConfig:
        """The same with the rule's text in place of its name: nothing else is needed to build it.

        The text has the constants and maps put in. Raises RuleError for a faulty rule.
        """
        if self.rule == SOFTMAX:
            return self
        text = compiled(self).rule.to_yaml()
        return replace(self, rule=text, maps={}, constants={})


def compiled(config: AttentionConfig) -> Any:
    """The operator of a rule by path, name or text."""
    constants, maps = dict(config.constants) or None, dict(config.maps) or None
    if "\n" not in config.rule:
        return fwgen.compile(config.rule, set=constants, maps=maps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rule.yaml")
        path.write_text(config.rule, encoding="utf-8")
        return fwgen.compile(path, set=constants, maps=maps)
