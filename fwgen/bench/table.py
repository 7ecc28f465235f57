"""The table of `make bench`: every measured ratio beside the one that is required."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

import fwgen
from fwgen.bench.machine import peak_flops
from fwgen.bench.peers import chunk_peer, loop_peer, softmax_peer
from fwgen.bench.timing import Contender, Tensors, Timing, agree, interleaved

B, H, D = 4, 8, 64
TOLERANCE = 2e-3
TANH_DELTA = """\
name: tanh_delta
inputs: {q: K, k: K, v: V, beta: scalar}
state:
  W: [V, K]
update: W = tanh(W) + beta * outer(v - W @ k, k)
output: W @ q
"""
CHUNKS = ("chunk 32", "chunk 64", "compiled chunk 64")
# Fewest floating-point operations per token and head, in units of D * D: forward, both passes.
WORK = {"deltanet": (6, 20)}


@dataclass(frozen=True)
class Goal:
    """A required ratio: the contender's median over ours; `peers` of which the best counts.

    No peers: the fraction of the machine's multiply-add peak.
    """

    rule: str
    tokens: int
    backward: bool
    peers: tuple[str, ...]
    least: float


def _both(rule: str, tokens: int, peers: tuple[str, ...], *least: float) -> list[Goal]:
    pairs = zip((False, True), least, strict=False)
    return [Goal(rule, tokens, backward, peers, bar) for backward, bar in pairs]


GOALS = [
    *_both("deltanet", 2048, CHUNKS, 7.0, 6.0),
    *_both("gated_delta", 2048, CHUNKS, 6.0, 5.0),
    *_both("gla", 2048, CHUNKS, 4.5, 3.8),
    *_both("sum", 2048, CHUNKS, 3.5, 3.0),
    Goal("tanh_delta", 2048, True, ("loop",), 12.0),
    *_both("deltanet", 256, ("softmax",), 3.0, 3.0),
    *_both("deltanet", 2048, ("softmax",), 12.0),
    *_both("deltanet", 16384, ("softmax",), 80.0),
    *_both("deltanet", 16384, ("chunk 64",), 7.0, 7.0),
    *_both("deltanet", 2048, (), 0.72, 0.55),
]


@dataclass(frozen=True)
class Result:
    """A goal with what was measured: our time, the best contender's name and time, the ratio."""

    goal: Goal
    mine: Timing
    peer: str
    theirs: Timing | None
    ratio: float

    @property
    def met(self) -> bool:
        """Whether the required ratio was reached."""
        return self.ratio >= self.goal.least


def measure(
    goals: list[Goal], rounds: int, compiled: bool, say: Callable[[str], None]
) -> Iterator[Result]:
    """Measure all goals; those of one rule and length share one interleaved run."""
    groups: dict[tuple[str, int], list[Goal]] = {}
    for goal in goals:
        groups.setdefault((goal.rule, goal.tokens), []).append(goal)
    for (rule, tokens), group in groups.items():
        say(f"{rule}, {tokens} tokens ...")
        wanted = dict.fromkeys(peer for goal in group for peer in goal.peers)
        if not compiled:
            wanted.pop("compiled chunk 64", None)
        contenders = _contenders(rule, tokens, [*wanted])
        passes = tuple(sorted({goal.backward for goal in group}))
        times: dict[tuple[str, bool], Timing] = {}
        times |= interleaved(contenders, rounds if tokens < 10_000 else 3, passes)
        for goal in group:
            yield _result(goal, times)


def _result(goal: Goal, times: dict[tuple[str, bool], Timing]) -> Result:
    mine = times["fwgen", goal.backward]
    if not goal.peers:
        work = WORK[goal.rule][goal.backward] * D * D * B * H * goal.tokens
        return Result(goal, mine, "peak", None, work / mine.median / peak_flops()[0])
    found = {p: times[p, goal.backward] for p in goal.peers if (p, goal.backward) in times}
    peer = min(found, key=lambda p: found[p].median)
    return Result(goal, mine, peer, found[peer], found[peer].median / mine.median)


def _contenders(rule: str, tokens: int, peers: list[str]) -> dict[str, Contender]:
    x, weight = inputs(rule, tokens)
    op = _operator(rule)
    found = {"fwgen": Contender(lambda t: op(*t.values(), backend="cpu")[0], x, weight)}
    theirs = {name: t.transpose(1, 2).contiguous() for name, t in x.items()}
    for peer in peers:
        limit = 3 if peer == "loop" or (peer == "softmax" and tokens > 10_000) else 1_000_000
        contender = Contender(
            _peer(rule, peer), theirs, weight.transpose(1, 2).contiguous(), rounds=limit
        )
        if peer != "softmax":
            _expect_agreement(rule, peer, found["fwgen"], contender)
        found[peer] = contender
    return found


def _expect_agreement(rule: str, peer: str, mine: Contender, other: Contender) -> None:
    difference = agree(mine, other)
    if not difference < TOLERANCE:
        raise fwgen.InternalError(f"{rule}: {peer} and fwgen differ by {difference:.1e}")


def _peer(rule: str, name: str) -> Callable[[Tensors], torch.Tensor]:
    if name == "softmax":
        return softmax_peer
    if name == "loop":
        return loop_peer(rule)
    plain = chunk_peer(rule, int(name.split()[-1]))
    if not name.startswith("compiled"):
        return plain
    compiled: Callable[[Tensors], torch.Tensor] = torch.compile(plain, dynamic=False)
    return compiled


def _operator(rule: str) -> Callable[..., tuple[torch.Tensor, object]]:
    if rule != "tanh_delta":
        return fwgen.compile(rule)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tanh_delta.yaml"
        path.write_text(TANH_DELTA, encoding="utf-8")
        return fwgen.compile(path)


def inputs(rule: str, tokens: int, lead: tuple[int, int] = (B, H)) -> tuple[Tensors, torch.Tensor]:
    """Inputs [B, T, H, ...] in the rule's order, and the output's weight; mild rates and decays."""
    generator = torch.Generator().manual_seed(0)

    def normal(*dims: int) -> torch.Tensor:
        return torch.randn(lead[0], tokens, lead[1], *dims, generator=generator)

    x = {"q": F.normalize(normal(D), dim=-1), "k": F.normalize(normal(D), dim=-1), "v": normal(D)}
    if rule in ("gated_delta", "gla"):
        x["g"] = F.logsigmoid(normal(*([D] if rule == "gla" else [])) + 4)
    if rule in ("deltanet", "gated_delta", "tanh_delta"):
        x["beta"] = torch.sigmoid(normal())
    return x, normal(D)


def show(results: list[Result]) -> None:
    """The table on stdout."""
    print(
        f"{'rule':13}{'tokens':>7} {'pass':5}{'fwgen ms':>10}  {'against':18}{'ms':>10}"
        f"{'ratio':>8}{'required':>10}"
    )
    for r in results:
        goal = r.goal
        theirs = f"{1e3 * r.theirs.median:10.1f}" if r.theirs else " " * 10
        print(
            f"{goal.rule:13}{goal.tokens:7} {'F+B' if goal.backward else 'F':5}"
            f"{1e3 * r.mine.median:10.2f}  {r.peer:18}{theirs}{r.ratio:8.2f}{goal.least:10.2f}"
            f"  {'met' if r.met else 'MISSED'}"
        )
    sys.stdout.flush()
