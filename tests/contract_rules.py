"""Rules that differ in structure, for tests of what a call promises whatever the rule is.

An affine rule whose backward has three passes, one with params whose backward keeps nothing, a
recurrent input with params, a nonlinear matrix that is replayed, vector states with their own start
values, several states with buffers and position, and one rule with all of this and learned starts.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fwgen
import problems
from fwgen.runtime.op import CompiledRule
from witnesses import WITNESSES, Witness
from witnesses.table import Values

EVERYTHING = Path(__file__).with_name("contract") / "everything.yaml"


def _everything(x: Values, p: Values, s: Values) -> tuple[Tensor, dict[str, Tensor]]:
    kk = x["k"] * torch.tanh(p["u"])
    W = torch.where(x["flag"] > 0, torch.exp(x["g"]), 1.0) * s["W"]
    W = W + torch.outer(torch.where(x["t"] % 3 == 2, x["v"], x["v"] - W @ kk), kk)
    z = 0.5 * torch.tanh(s["z"] + kk)
    return p["r"] * (W @ (x["q"] + z)) / (1 + x["t"]), {"W": W, "z": z}


_ALL = Witness(
    "everything",
    _everything,
    inputs={"q": "K", "k": "K", "v": "V", "g": "", "flag": ""},
    params={"u": "K"},
    buffers={"r": "V"},
    states={"W": "V K", "z": "K"},
    output="V",
    draw={"k": "key", "g": "decay", "flag": "flag"},
    learned=True,
    uses_position=True,
)
NAMES = (
    "gated_delta",
    "mamba2",
    "recurrent_delta",
    "fwp_additive_tanh",
    "rwkv4",
    "agalite",
    "everything",
)
PACKED = [0, 0, 5, 5, 21, 22, 38, 38]
"""Boundaries with empty sequences at both ends and in the middle."""


def witness(name: str) -> Witness:
    return _ALL if name == _ALL.name else WITNESSES[name]


def compiled(name: str) -> CompiledRule:
    return fwgen.compile(EVERYTHING if name == _ALL.name else name)


def with_sizes(w: Witness, **sizes: int) -> Witness:
    """The witness with other sizes of its base dims."""
    fixed = {n: lambda known, size=size: size for n, size in sizes.items()}
    return replace(w, derived={**fixed, **w.derived})


def golden(w: Witness, p: problems.Problem, run=None) -> dict[str, Tensor]:
    """What the witness gives in float64, gradients included."""
    return problems.collect(p.to(torch.float64), run or (lambda q: problems.run_witness(w, q)))


def eager(w: Witness, p: problems.Problem, run=None) -> dict[str, Tensor]:
    """The same in float32: the error that PyTorch would make."""
    return problems.collect(p.to(torch.float32), run or (lambda q: problems.run_witness(w, q)))


def result(name: str, p: problems.Problem, **options) -> dict[str, Tensor]:
    """What the compiled rule gives, gradients included."""
    return problems.collect(p, lambda q: problems.run_op(compiled(name), q, **options))


def check(name: str, p: problems.Problem, dtype=torch.float64, run=None, **options) -> None:
    """The compiled rule against its witness, on the same rounded tensors."""
    w, p = witness(name), p.to(dtype)
    want, near = golden(w, p, run), eager(w, p, run)
    problems.compare(result(name, p, **options), want, near, dtype)


def packed_problem(w: Witness, bounds: list[int], seed: int = 0) -> problems.Problem:
    """Sequences in one row, with start states of their own where the rule has none to learn."""
    row = problems.draw(w, bounds[-1], B=1, seed=seed)
    many = problems.draw(w, 1, B=len(bounds) - 1, seed=seed + 1)
    weights = {n: row.weights[n] if n == "y" else t for n, t in many.weights.items()}
    return replace(row, initial=many.initial, weights=weights)


def one_by_one(w: Witness, bounds: list[int], positions: list[int] | None = None):
    """The witness on every packed sequence by itself."""

    def run(p: problems.Problem) -> tuple[Tensor, dict[str, Tensor]]:
        outputs, finals = [], []
        for n, (start, stop) in enumerate(pairwise(bounds)):
            own = replace(
                p,
                inputs={name: t[:, start:stop] for name, t in p.inputs.items()},
                initial=p.initial and {name: t[n : n + 1] for name, t in p.initial.items()},
                position=positions[n] if positions else p.position,
            )
            if start == stop:
                finals.append({n: t[:1] for n, t in problems.first_states(w, own).items()})
                continue
            y, final = problems.run_witness(w, own)
            outputs.append(y)
            finals.append(final)
        return torch.cat(outputs, 1), {n: torch.cat([f[n] for f in finals]) for n in finals[0]}

    return run


class Intercepted(TorchDispatchMode):
    """Sends calls to the registered operators."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
