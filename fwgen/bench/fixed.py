"""What a call costs beside its arithmetic: building, loading, one token, long sequences, memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import fwgen
from fwgen.bench.table import inputs
from fwgen.bench.timing import peak_bytes

RULE = "deltanet"
SHORT, LONG = 1024, 1024 * 1024

# Runs in a process of its own: prints the seconds until a fixed-size and an open-size pair of
# kernels stand ready, everything else being imported and compiled before.
BUILD = """
import sys, time, torch, fwgen
op = fwgen.compile(sys.argv[1])
for size in (64, 60):
    x = [torch.randn(1, 1, 1, size, requires_grad=True) for _ in "qkv"]
    beta = torch.rand(1, 1, 1, requires_grad=True)
    start = time.perf_counter()
    op(*x, beta)[0].sum().backward()
    print(time.perf_counter() - start)
"""


@dataclass(frozen=True)
class Cost:
    """A measured figure beside its bound, in the same unit."""

    what: str
    value: float
    most: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether the bound holds."""
        return self.value <= self.most


def costs() -> Iterator[Cost]:
    """Measure `deltanet`, K = V = 64, float32, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        cold = _builds(folder)
        warm = _builds(folder)
    yield Cost("cold build of forward and backward, fixed sizes", cold[0], 1.5, "s")
    yield Cost("cold build of forward and backward, open sizes", cold[1], 1.5, "s")
    yield Cost("load from the cache and first call", 1e3 * max(warm), 10.0, "ms")
    yield Cost("call at T = 1 without gradient", 1e6 * _one_token(), 25.0, "us")
    whole = _inputs(LONG)
    parts = [[x[:, n : n + SHORT] for x in whole] for n in range(0, LONG, SHORT)]
    short, long = _per_token(parts), _per_token([whole] * 3)
    yield Cost("time per token at T = 1M over that at T = 1k", long / short, 1.25, "")
    yield Cost("forward memory beside the tensors at T = 1k", _beside(SHORT), 4.0, "MB")
    yield Cost("forward memory beside the tensors at T = 1M", _beside(LONG), 4.0, "MB")


def _builds(folder: str) -> list[float]:
    environment = {**os.environ, "FWGEN_CACHE_DIR": folder}
    command = [sys.executable, "-c", BUILD, RULE]
    run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(line) for line in run.stdout.split()]


def _one_token(turns: int = 3000) -> float:
    """Seconds per call, the least of some blocks of calls."""
    op = fwgen.compile(RULE)
    x = _inputs(1)
    best = float("inf")
    with torch.no_grad():
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(turns):
                op(*x)
            best = min(best, (time.perf_counter() - start) / turns)
    return best


def _per_token(calls: list[list[torch.Tensor]]) -> float:
    """Seconds per token of forwards over different tokens: all read from memory."""
    op = fwgen.compile(RULE)
    op(*calls[0])
    seconds = []
    with torch.no_grad():
        for x in calls:
            start = time.perf_counter()
            op(*x)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) / calls[0][0].shape[1]


def _beside(tokens: int) -> float:
    """Megabytes that a forward needs beside its result."""
    op = fwgen.compile(RULE)
    x = _inputs(tokens)
    kept: list[torch.Tensor] = []

    def call() -> None:
        with torch.no_grad():
            kept.append(op(*x)[0])

    call()  # the work space of the thread stays from call to call
    risen = peak_bytes(call)
    return float("nan") if risen is None else max(0, risen - kept[-1].nbytes) / 2**20


def _inputs(tokens: int) -> list[torch.Tensor]:
    x, _ = inputs(RULE, tokens, (1, 1))
    return [*x.values()]


def show(found: list[Cost]) -> None:
    """The figures on stdout."""
    print(f"\n{'deltanet, K = V = 64, B = H = 1':52}{'measured':>12}{'at most':>10}")
    for cost in found:
        print(
            f"{cost.what:52}{cost.value:12.2f}{cost.most:10.2f} {cost.unit:3}"
            f" {'met' if cost.met else 'MISSED'}"
        )
