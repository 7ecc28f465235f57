"""Associative retrieval (Schlag, Irie and Schmidhuber 2021, synthetic task).

A sequence writes L pairs (key, value) of S unique keys and values into a memory and then asks for
one key; the answer is the value of that key's last pair. Setting 1: L = S, keys and values drawn
without replacement, so the memory must hold S pairs. Setting 2: L = 2S with replacement, so it
must also forget: a key is re-assigned twice on average.

Letters: B batch, L pairs, S unique keys and values, K key size, N questions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fwgen

from . import conventions
from .attention_config import AttentionConfig
from .mixer import Mixer, RuleMixer, activate, make_mixer, parted
from .settings import TrainConfig, at_least, device_of, one_of
from .task import Task
from .train import train


@dataclass(frozen=True)
class RetrievalConfig:
    """One run; the defaults are the paper's."""

    rule: str = "delta"
    maps: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    setting: int = 2  # 1: without replacement, 2: with
    size: int = 20  # S
    d_key: int = 64  # K, before the feature map
    eval_length: str = "S"  # length of the sequences that decide when to stop: "S" or "2S"
    batch: int = 32
    eval_batch: int = 20  # sequences, each asked for all its keys
    seed: int = 1
    sizes: Mapping[str, int] = field(default_factory=dict)
    activations: Mapping[str, str] = field(default_factory=dict)
    redraw: int = 1  # the paper draws random features anew for every forward pass,
    redraw_in_eval: bool = True  # also when it evaluates
    backend: str = "auto"
    form: str = "auto"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.setting not in (1, 2):
            raise fwgen.ArgumentError(f"setting: expected 1 or 2, got {self.setting}")
        one_of("eval_length", self.eval_length, ("S", "2S"))
        if self.setting == 1 and self.eval_length == "2S":
            raise fwgen.ArgumentError("eval_length: 2S needs setting 2; S pairs exist in setting 1")
        for name in ("size", "d_key", "batch", "eval_batch"):
            at_least(name, getattr(self, name), 1)
        at_least("seed", self.seed, 0)
        device_of(self.device)

    @property
    def name(self) -> str:
        """For tables and legends."""
        return AttentionConfig(self.rule, self.maps, self.constants).name


# --- data


def draw_pairs(
    config: RetrievalConfig, batch: int, length: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Keys and values of a batch, [B, L] each, numbers below S."""
    S = config.size
    if config.setting == 1:
        orders = torch.rand(2, batch, S, generator=generator).argsort(-1)
        return orders[0, :, :length], orders[1, :, :length]
    pairs = torch.randint(S, (2, batch, length), generator=generator)
    return pairs[0], pairs[1]


def ask(keys: Tensor, values: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One question per sequence, at a random position: query and target, [B] each.

    Keys are so asked in proportion to how often they occur; the target is the value of the last
    pair of the key.
    """
    B, L = keys.shape
    place = torch.randint(L, (B, 1), generator=generator)
    query = keys.gather(1, place)  # [B, 1]
    last = (keys == query).long().cumsum(1).argmax(1, keepdim=True)  # first to reach the count
    return query[:, 0], values.gather(1, last)[:, 0]


def ask_all(
    keys: Tensor, values: Tensor, size: int, limit: int = 200
) -> tuple[Tensor, Tensor, Tensor]:
    """Every distinct key of each sequence (the first `limit`): row, query and target, [N] each."""
    B, L = keys.shape
    places = torch.arange(L).expand(B, L)
    last = torch.full((B, size), -1).scatter_reduce(1, keys, places, "amax")  # [B, S], -1: absent
    present = last >= 0
    rows, queries = (present & (present.cumsum(1) <= limit)).nonzero(as_tuple=True)
    return rows, queries, values[rows, last[rows, queries]]


# --- model

VALUES = ("v", "x", "u")  # what rules call the input that is to be read


class RetrievalModel(nn.Module):
    """Frozen one-hot values, learned keys. What the rule writes besides the value is a projection
    of the pair [value; key], what it only reads is one of the key alone.

    Token t asks for its own key; only the last token's question differs and is answered. So the
    state before it does not depend on the question, and many questions can share it.
    """

    values: Tensor  # [S, S], one-hot rows

    def __init__(self, config: RetrievalConfig) -> None:
        super().__init__()
        S, K = config.size, config.d_key
        shared = {f.name for f in fields(AttentionConfig)} & {f.name for f in fields(config)}
        same = {name: getattr(config, name) for name in shared}
        self.mixer = make_mixer(AttentionConfig(**same, d_value=S))
        self.queries, self.value = _roles(self.mixer)
        if self.mixer.inputs[self.value][-1:] != (S,) or self.mixer.output != (S,):
            raise fwgen.ArgumentError(
                f"rule: expected a value and an output of [{S}], {self.mixer.rule_name} has "
                f"{self.mixer.inputs[self.value]} and {self.mixer.output}"
            )
        self.written = [n for n in self.mixer.inputs if n not in (*self.queries, self.value)]
        width = self._width(self.written)
        e = int(1.1 * (S + S))
        self.keys = nn.Parameter(torch.randn(S, e))
        self.register_buffer("values", torch.eye(S), persistent=False)
        self.write = nn.Linear(S + e, width)
        self.ask = nn.Linear(e, self._width(self.queries))
        self._start(1 / math.sqrt(K))

    def _width(self, names: list[str]) -> int:
        return sum(math.prod(self.mixer.inputs[name]) for name in names)

    @torch.no_grad()
    def _start(self, bound: float) -> None:
        """Key-like projections start in U(-bound, bound), gates where the field starts them."""
        for names, linear in ((self.queries, self.ask), (self.written, self.write)):
            sizes = [self.mixer.inputs[name] for name in names]
            widths = [math.prod(s) for s in sizes]
            weights, biases = (torch.split(x, widths) for x in (linear.weight, linear.bias))
            for name, s, weight, bias in zip(names, sizes, weights, biases, strict=True):
                if s:
                    weight.uniform_(-bound, bound)
                gate = conventions.start_of(self.mixer.rule_name, name, (1, *s))
                if gate is not None:
                    bias.copy_(gate.flatten())

    def forward(self, keys: Tensor, values: Tensor, query: Tensor) -> Tensor:
        """Pairs [B, L] and one question each [B] -> answers [B, S]."""
        asked = torch.cat([keys[:, :-1], query[:, None]], 1)
        return self.mixer.last(self._inputs(keys, values, asked))[:, 0]

    def answer(self, keys: Tensor, values: Tensor, rows: Tensor, queries: Tensor) -> Tensor:
        """Question n about sequence rows[n]: [N, S]. The state is computed once per sequence."""
        before = keys.shape[1] - 1
        state = None
        if before:
            first, first_values = keys[:, :-1], values[:, :-1]
            inputs = self._inputs(first, first_values, first)
            state = self.mixer(inputs, keep_state=True)[1]
        elements = 1 if state is None else sum(s[0].numel() for s in state.values())
        at_once = max(1, 2**26 // elements)  # bounds the memory of the copied states
        answers = []
        for part, asked in zip(*(torch.split(x, at_once) for x in (rows, queries)), strict=True):
            token = self._inputs(keys[part, -1:], values[part, -1:], asked[:, None])
            own = {name: s[part] for name, s in state.items()} if state else None
            answers.append(self.mixer.last(token, own, before)[:, 0])
        return torch.cat(answers)

    def _inputs(self, keys: Tensor, values: Tensor, asked: Tensor) -> dict[str, Tensor]:
        """[B, L] each -> the rule's inputs [B, L, 1, *sizes].

        W [value; key] + b is looked up in one table for values and one for keys.
        """
        S = self.values.shape[0]
        weight = self.write.weight
        of_key = F.linear(self.keys, weight[:, S:], self.write.bias)  # [S, width]
        packed = F.embedding(values, weight[:, :S].t()) + F.embedding(keys, of_key)
        inputs = activate(self.mixer, parted(self.mixer, packed, 1, self.written))
        read = F.embedding(asked, self.ask(self.keys))  # [B, L, widths of the queries]
        inputs |= activate(self.mixer, parted(self.mixer, read, 1, self.queries))
        value = F.embedding(values, self.values).unsqueeze(2)  # [B, L, 1, S]
        copies = self.mixer.inputs[self.value][:-1]  # a rule with several writes has [N, S]
        for _ in copies:
            value = value.unsqueeze(-2)
        inputs[self.value] = value.expand(*value.shape[:3], *copies, -1)
        return inputs


def _roles(mixer: Mixer) -> tuple[list[str], str]:
    """The inputs that ask (what only the output reads, else the one called q) and the value."""
    names = list(mixer.inputs)
    asking = ["q"] if "q" in names else []
    if isinstance(mixer, RuleMixer):
        rule = mixer.op.rule
        updated, read = (set(re.findall(r"[A-Za-z_]\w*", t)) for t in (rule.update, rule.output))
        asking = [n for n in names if n in read and n not in updated] or asking
    values = [n for n in VALUES if n in names]
    if not asking or not values:
        raise fwgen.ArgumentError(
            f"rule: {mixer.rule_name} has no {'value' if asking else 'query'}; expected an input "
            f"that only the output reads and one named {' or '.join(VALUES)}, "
            f"it has {', '.join(names)}"
        )
    return asking, values[0]


# --- task


class RetrievalTask(Task):
    """Data, loss and evaluation for `train`."""

    def __init__(self, config: RetrievalConfig) -> None:
        self.config, self.device = config, config.device
        torch.manual_seed(config.seed)
        self.model: RetrievalModel = RetrievalModel(config).to(config.device)
        if isinstance(self.model.mixer, RuleMixer):
            self.texts = {"rule": self.model.mixer.op.rule.to_yaml()}
        self.length = config.size * config.setting
        self.tokens_per_step = config.batch * self.length
        self.generators = {
            "train": torch.Generator().manual_seed(config.seed),
            "eval": torch.Generator().manual_seed(config.seed + 1_000_000),
        }

    def loss(self) -> Tensor:
        """Half the squared distance to the one-hot target, mean over a fresh batch.

        One half is the loss of the answer zero.
        """
        generator = self.generators["train"]
        keys, values = draw_pairs(self.config, self.config.batch, self.length, generator)
        query, target = ask(keys, values, generator)
        keys, values, query, target = self._move(keys, values, query, target)
        return 0.5 * _distance(self.model(keys, values, query), target).mean()

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on fresh sequences of every length; "loss" is that of `eval_length`."""
        figures: dict[str, float] = {}
        for name in ("S",) if self.config.setting == 1 else ("S", "2S"):
            length = self.config.size * (2 if name == "2S" else 1)
            loss, accuracy = self._evaluate(length)
            figures |= {f"loss_{name}": loss, f"accuracy_{name}": accuracy}
        chosen = self.config.eval_length
        return {name: figures[f"{name}_{chosen}"] for name in ("loss", "accuracy")} | figures

    def _evaluate(self, length: int) -> tuple[float, float]:
        config = self.config
        keys, values = draw_pairs(config, config.eval_batch, length, self.generators["eval"])
        asked = ask_all(keys, values, config.size)
        keys, values, rows, queries, targets = self._move(keys, values, *asked)
        y = self.model.answer(keys, values, rows, queries)  # [N, S]
        right = (y.argmax(-1) == targets).float().mean()
        return 0.5 * _distance(y, targets).mean().item(), right.item()

    def _move(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if self.config.device == "cpu":
            return tensors
        return tuple(tensor.to(self.config.device) for tensor in tensors)


def _distance(y: Tensor, target: Tensor) -> Tensor:
    """Squared distance of each row to its one-hot target: |y|^2 - 2 y[target] + 1."""
    one_hot = F.one_hot(target, y.shape[-1]).to(y.dtype)
    return (y - one_hot).square().sum(-1)


def run(
    config: RetrievalConfig,
    training: TrainConfig = TrainConfig(),  # noqa: B008 -- frozen
    out: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train one model; returns what `results.json` holds."""
    about = {"task": "retrieval", "name": config.name, "config": asdict(config)}
    task = RetrievalTask(config)
    label = f"{config.name} S={config.size}"
    return train(task, training, about, out, resume=resume, overwrite=overwrite, label=label)
