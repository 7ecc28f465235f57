"""Every shipped rule under Triton's interpreter, against the loops written from the mathematics.

Run as `python shipped.py FORM RULE...` with TRITON_INTERPRET=1, FORM being `registers` or `memory`:
one JSON line per rule and case, `[rule, case, fault]`, the fault being "" where all is well.
"""

import json
import sys
import traceback
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from forms import choose

import fwgen
import problems
from witnesses import WITNESSES

CUTS = [0, 0, 3, 4, 4]
"""Packed sequences, empty ones at both ends, one of a single token."""


def run_packed(op, p, **options):
    """The public call on the tokens of the first batch entry, cut into sequences."""
    device = next(iter(p.inputs.values())).device
    return problems.run_op(op, p, cu_seqlens=torch.tensor(CUTS, device=device), **options)


def packed(w):
    """A problem of one batch entry with start states and final states per sequence."""
    p = problems.draw(w, CUTS[-1], B=1, H=2)
    many = problems.draw(w, 1, B=len(CUTS) - 1, H=2)
    finals = {n: x for n, x in many.weights.items() if n != "y"}
    initial = None if p.initial is None else many.initial
    return replace(p, initial=initial, weights={"y": p.weights["y"]} | finals)


def witness_packed(w, p):
    """The token loop over each sequence."""
    parts = []
    for n, (a, b) in enumerate(pairwise(CUTS)):
        inputs = {name: x[:, a:b] for name, x in p.inputs.items()}
        initial = None if p.initial is None else {s: x[n : n + 1] for s, x in p.initial.items()}
        parts.append(run_witness(w, replace(p, inputs=inputs, initial=initial)))
    y = torch.cat([y for y, _ in parts], 1)
    return y, {s: torch.cat([final[s] for _, final in parts]) for s in w.states}


def run_witness(w, p):
    """The token loop; a sequence without tokens has an output without tokens."""
    some = next(iter(p.inputs.values()))
    if some.shape[1]:
        return problems.run_witness(w, p)
    return some.new_empty(1, 0, some.shape[2], *w.shape(w.output)), problems.first_states(w, p)


def run_steps(op, p):
    """The public step, token after token."""
    state = p.initial
    outputs = []
    for t in range(next(iter(p.inputs.values())).shape[1]):
        y, state = op.step(
            *(x[:, t] for x in p.inputs.values()),
            state=state,
            params=p.params or None,
            buffers=p.buffers or None,
            position=None if p.position is None else p.position + t,
            backend="triton",
        )
        outputs.append(y)
    return torch.stack(outputs, 1), state


def compare(w, p, run, expected=problems.run_witness, dtype=torch.float32, device="cpu"):
    """Outputs, states and gradients of `run` against the token loop in float64.

    States are float32 whatever the dtype; the tensors of `run` are on the device.
    """
    states = p.initial and {n: t.float() for n, t in p.initial.items()}
    p = replace(p.to(dtype), initial=states)
    want = problems.collect(p.to(torch.float64), lambda q: expected(w, q))
    eager = problems.collect(p.to(torch.float32), lambda q: expected(w, q))
    mine = p.map(lambda t: problems.guarded(t.to(device)))
    got = {name: t.cpu() for name, t in problems.collect(mine, run).items()}
    problems.compare(got, want, eager, dtype)
    for name, leaf in mine.leaves().items():
        problems.check_band(name, leaf)


def check_call(name, T):
    w, op = WITNESSES[name], fwgen.compile(name)
    compare(w, problems.draw(w, T, B=1, H=2), lambda p: problems.run_op(op, p, backend="triton"))


def check_packed(name):
    w, op = WITNESSES[name], fwgen.compile(name)
    compare(w, packed(w), lambda p: run_packed(op, p, backend="triton"), witness_packed)


def check_steps(name):
    w, op = WITNESSES[name], fwgen.compile(name)
    compare(w, problems.draw(w, 2, B=2, H=1), lambda p: run_steps(op, p))


CASES = {
    "call": lambda name: check_call(name, 6),
    "one token": lambda name: check_call(name, 1),
    "packed": check_packed,
    "steps": check_steps,
}


def main(form, names):
    choose(form)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    for name in names:
        for case, check in CASES.items():
            try:
                check(name)
                fault = ""
            except Exception:
                fault = traceback.format_exc()
            print(json.dumps([name, case, fault]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
