"""Text from a language model, a token at a time: constant memory and time per token for a rule.

Letters: B sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import fwgen

from .data.text import Tokenizer
from .lm import LanguageModel, States
from .settings import at_least

PREFILL = 1024  # tokens of a prompt that are computed at once


@dataclass(frozen=True)
class SamplingConfig:
    """How a token is drawn; the defaults draw from the model's distribution as it is."""

    tokens: int = 200  # new ones per sequence
    temperature: float = 1.0  # 0: always the most probable
    top_k: int = 0  # among so many most probable; 0: all
    top_p: float = 1.0  # among the most probable that hold so much probability together
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "temperature", "top_k"):
            at_least(name, getattr(self, name), 0)
        at_least("seed", self.seed, 0, below=2**63)
        if not 0 < self.top_p <= 1:
            raise fwgen.ArgumentError(f"top_p: expected above 0 and at most 1, got {self.top_p}")


@torch.no_grad()
def generate(
    model: LanguageModel, prompts: Sequence[Sequence[int]], config: SamplingConfig
) -> Iterator[list[int | None]]:
    """The next token of every sequence, again and again; None where it is finished.

    Prompts may differ in length: what all have is computed at once, then each goes on with its own
    tokens, and draws when they have run out.
    """
    if not prompts or min(map(len, prompts)) == 0:
        raise fwgen.ArgumentError("prompt: expected at least one token in each")
    device = model.embedding.weight.device
    generator = torch.Generator(device).manual_seed(config.seed)
    common = min(map(len, prompts))
    head = torch.tensor([list(prompt[:common]) for prompt in prompts], device=device)
    log_probs, state = _prefill(model, head)
    last = max(map(len, prompts)) + config.tokens
    for position in range(common, last):
        drawn = draw(log_probs, config, generator).tolist()  # [B]
        token = [
            p[position] if position < len(p) else t for p, t in zip(prompts, drawn, strict=True)
        ]
        ends = [len(prompt) + config.tokens for prompt in prompts]
        yield [
            t if len(p) <= position < end else None
            for t, p, end in zip(token, prompts, ends, strict=True)
        ]
        if position + 1 < last:
            log_probs, state = model.step(torch.tensor(token, device=device), state, position)


def _prefill(model: LanguageModel, tokens: Tensor) -> tuple[Tensor, States]:
    """[B, T] -> log-probabilities of the token after, [B, V], and the states."""
    state: States | None = None
    for start in range(0, tokens.shape[1] - 1, PREFILL):
        part = tokens[:, start : min(start + PREFILL, tokens.shape[1] - 1)]
        _, state = model.read(part, state, start)
    return model.step(tokens[:, -1], state, tokens.shape[1] - 1)


def draw(log_probs: Tensor, config: SamplingConfig, generator: torch.Generator) -> Tensor:
    """One token per row of [B, V]: [B]."""
    if config.temperature == 0:
        return log_probs.argmax(-1)
    scores = log_probs / config.temperature
    if config.top_k:
        least = scores.topk(min(config.top_k, scores.shape[-1])).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if config.top_p < 1:
        ordered, order = scores.softmax(-1).sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered  # what is more probable holds this much
        dropped = torch.zeros_like(before, dtype=torch.bool)
        dropped.scatter_(-1, order, before >= config.top_p)
        scores = scores.masked_fill(dropped, -torch.inf)
    return torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0]


class Printer:
    """Tokens of one sequence -> text, as soon as whole characters are there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.waiting: list[int] = []

    def add(self, token: int) -> str:
        """What can be shown after one more token; a character may need several."""
        self.waiting.append(token)
        text = self.tokenizer.decode(self.waiting)
        if text.endswith("�") and len(self.waiting) < 4:
            return ""
        self.waiting.clear()
        return text

    def end(self) -> str:
        """What is left."""
        text = self.tokenizer.decode(self.waiting)
        self.waiting.clear()
        return text
