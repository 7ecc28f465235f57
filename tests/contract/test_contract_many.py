"""Tens of thousands of packed sequences, and tensors of more than 2^31 elements."""

import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch

import problems
from contract_rules import compiled, packed_problem, witness

COUNT = 70_000
RULES = ["mamba2", "recurrent_delta", "rwkv4", "everything"]


def lengths() -> torch.Tensor:
    """Of 70,000 sequences: many empty, most of a token or two, one longer than a chunk."""
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randint(0, 4, (COUNT,), generator=generator)
    drawn[0] = drawn[-1] = 0
    drawn[COUNT // 2] = 37
    return drawn


def of_length(p: problems.Problem, starts: torch.Tensor, T: int, which: torch.Tensor):
    """The sequences of one length as rows."""
    at = starts[which][:, None] + torch.arange(T)
    picked = {n: t[0, at] for n, t in p.inputs.items()}
    weights = {n: t[0, at] if n == "y" else t[which] for n, t in p.weights.items()}
    initial = p.initial and {n: t[which] for n, t in p.initial.items()}
    return replace(p, inputs=picked, weights=weights, initial=initial)


@pytest.mark.parametrize("name", RULES)
def test_many_packed_sequences(name, poisoned):
    """Every sequence as if it were alone; what heads share gets the sum over all."""
    w = witness(name)
    long = lengths()
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), long.cumsum(0)])
    p = packed_problem(w, bounds.tolist()).to(torch.float32)
    got = problems.collect(p, lambda q: problems.run_op(compiled(name), q, cu_seqlens=bounds))
    per_token = {"y", *(f"d.{n}" for n in w.inputs)}
    shared: Counter[str] = Counter()
    for T in long.unique().tolist():
        which = (long == T).nonzero()[:, 0]
        rows = of_length(p, bounds, T, which)
        if T == 0:
            for n, start in problems.first_states(w, rows).items():
                alone = start.expand(len(which), *start.shape[1:])
                assert torch.equal(got[f"final.{n}"][which], alone.double())
            for n in w.states if w.learned else ():
                shared[f"d.params.{n}"] += rows.weights[f"final.{n}"].double().sum(0)
            continue
        want = problems.collect(rows.to(torch.float64), lambda q: problems.run_witness(w, q))
        near = problems.collect(rows, lambda q: problems.run_witness(w, q))
        at = bounds[which][:, None] + torch.arange(T)
        for n, value in want.items():
            if n.startswith("d.params."):
                shared[n] += value
                continue
            mine = got[n][0, at] if n in per_token else got[n][which]
            problems.assert_close(n, mine, value, problems.allowance(value, near[n], torch.float32))
    for n, value in shared.items():
        problems.assert_close(n, got[n], value, 1e-5 * float(value.abs().max()))


@pytest.mark.parametrize("name", RULES)
def test_no_python_per_sequence(name):
    """Calls of functions during forward and backward do not count with the sequences."""
    w = witness(name)
    counts = []
    for N in (100, COUNT):
        bounds = lengths()[:N].cumsum(0)
        p = packed_problem(w, bounds.tolist()).map(
            lambda t: t.requires_grad_(t.is_floating_point())
        )

        def both(p=p, bounds=bounds):
            y, final = problems.run_op(compiled(name), p, cu_seqlens=bounds)
            (y.sum() + sum(t.sum() for t in final.values())).backward()

        both()  # builds and prepares
        calls = 0

        def count(frame, event, arg):
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            both()
        finally:
            sys.setprofile(None)
        counts.append(calls)
    assert counts[1] < counts[0] + 3000, counts
