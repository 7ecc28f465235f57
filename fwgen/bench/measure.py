"""One rule beside its contenders at one shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import fwgen
from fwgen.bench.machine import peak_flops
from fwgen.bench.peers import CHUNKED, chunk_peer, softmax_peer
from fwgen.bench.timing import Contender, Tensors, interleaved, peak_bytes
from fwgen.runtime.op import CompiledRule

LOOP_ROUNDS, SLOW = 3, 1.0
"""The loop over tokens runs so often at most, and no more once its calls took so many seconds."""


@dataclass(frozen=True)
class Measurement:
    """One contender: seconds, the ratio of its median to ours, memory and fraction of peak.

    The memory of what takes longer than `SLOW`, which would have to run once more, is None.
    """

    rule: str
    backward: bool
    contender: str
    median: float
    least: float
    ratio: float
    memory: int | None
    peak: float | None

    @property
    def label(self) -> str:
        """`F` or `F+B`."""
        return "F+B" if self.backward else "F"

    def document(self) -> dict[str, Any]:
        """The measurement as JSON data."""
        return {
            "rule": self.rule,
            "pass": self.label,
            "contender": self.contender,
            "ms": 1e3 * self.median,
            "least_ms": 1e3 * self.least,
            "ratio": self.ratio,
            "memory_bytes": self.memory,
            "fraction_of_peak": self.peak,
        }


@dataclass(frozen=True)
class Call:
    """A call: inputs [B, T, H, ...] in order, the other keywords, and the loss's weight of y."""

    inputs: Tensors
    keywords: dict[str, Any]
    weight: torch.Tensor


def measure(
    op: CompiledRule,
    call: Call,
    against: Sequence[str],
    rounds: int,
    work: tuple[int, int],
    say: Callable[[str], None] = lambda text: None,
) -> list[Measurement]:
    """Time the CPU kernels of a rule and the contenders that exist for it on one call.

    `work` is the number of FLOPs of the whole call, forward and both passes. `say` is told what
    takes the time.
    """
    contenders = _contenders(op, call, against)
    name = op.signature.name
    plural = "s" * (rounds != 1)
    say(f"{name}: {rounds} round{plural} of {', '.join(contenders)}")
    if "loop" in contenders and rounds > 1:
        say(f"{name}: loop, over tokens in PyTorch, is slow: {LOOP_ROUNDS} rounds of it at most")
    times = interleaved(contenders, rounds)
    found = []
    for (who, backward), timing in times.items():
        contender = contenders[who]
        memory = None
        if timing.median < SLOW:
            memory = peak_bytes(lambda c=contender, b=backward: c.once(b))  # type: ignore[misc]
        share = work[backward] / timing.median / peak_flops()[0] if who == "fwgen" else None
        ratio = timing.median / times["fwgen", backward].median
        times_of = (timing.median, timing.least, ratio)
        found.append(Measurement(name, backward, who, *times_of, memory, share))
    return found


def _contenders(op: CompiledRule, call: Call, against: Sequence[str]) -> dict[str, Contender]:
    x, weight = call.inputs, call.weight

    def ours(backend: str, **limits: Any) -> Contender:
        def run(t: Tensors) -> torch.Tensor:
            return op(*t.values(), **call.keywords, backend=backend)[0]

        return Contender(run, x, weight, **limits)

    found = {"fwgen": ours("cpu")}
    theirs = {name: t.transpose(1, 2).contiguous() for name, t in x.items()}
    flipped = weight.transpose(1, 2).contiguous()
    tokens = weight.shape[1]
    if "chunk" in against and _shipped(op):
        for size in (32, 64):
            if tokens % size == 0:
                peer = chunk_peer(op.signature.name, size)
                found[f"chunk {size}"] = Contender(peer, theirs, flipped)
    if "softmax" in against and _attends(theirs):
        found["softmax"] = Contender(softmax_peer, theirs, flipped)
    if "loop" in against:
        found["loop"] = ours("reference", rounds=LOOP_ROUNDS, seconds=SLOW)
    return found


def _shipped(op: CompiledRule) -> bool:
    """Whether a chunkwise peer computes just this rule."""
    name = op.signature.name
    return name in CHUNKED and fwgen.load_rule(name).hash == op.signature.hash


def _attends(x: Tensors) -> bool:
    same = {"q", "k", "v"} <= set(x) and all(x[n].dim() == 4 for n in "qkv")
    return same and x["q"].shape == x["k"].shape and x["q"].shape[1] == x["v"].shape[1]
