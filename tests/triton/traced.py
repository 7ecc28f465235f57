"""Calls of the Triton kernels through PyTorch's compiler, under Triton's interpreter.

Run as `python traced.py FORM RULE...` with TRITON_INTERPRET=1, FORM being `registers` or `memory`:
one JSON line per rule and case, `[rule, case, fault]`, the fault being "" where all is well.
"""

import json
import sys
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from forms import choose
from torch._subclasses.fake_tensor import FakeTensorMode

import fwgen
import problems
from fwgen.runtime.geometry import interval
from witnesses import WITNESSES

LENGTHS = (0, 1, 2, 4, 5, 17)
"""About both sides of where checkpoints move apart."""


def shapes(w, op, T, cuts):
    """Forward calls of the operator give what it tells PyTorch that they give."""
    p = problems.draw(w, T, B=1 if cuts else 2, H=2, initial=False).to(torch.float32)
    cu_seqlens = torch.tensor([0, 0, T, T]) if cuts else None
    flat = op._binder.flat([*p.inputs.values()], {}, p.params, p.buffers, None, cu_seqlens, None)
    for training in (False, True):
        call = (*flat, "auto", "triton", None, training, True)
        real = op._operators.forward(*call)
        with FakeTensorMode() as mode:
            fake = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in call]
            told = op._operators.forward(*fake)
        got, want = ([(x.shape, x.dtype) for x in found] for found in (told, real))
        assert got == want, f"T = {T}, {training=}: {got} instead of {want}"


def same(w, op, T):
    """A training step as one graph gives the bits of an eager one."""
    p = problems.draw(w, T, B=2, H=2, initial=False).to(torch.float32)
    torch._dynamo.reset()

    def step(inputs, params):
        y, _ = op(*inputs, params=params, buffers=p.buffers, backend="triton")
        return y.square().mean()

    results = []
    for run in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in p.inputs.values()]
        params = {n: x.clone().requires_grad_() for n, x in p.params.items()}
        loss = run(inputs, params)
        asked = [x for x in (*inputs, *params.values()) if x.requires_grad]
        results.append([loss, *torch.autograd.grad(loss, asked, allow_unused=True)])
    for a, b in zip(*results, strict=True):
        assert a is b is None or torch.equal(a, b)


def distances(op):
    """The runtime knows how far the kernels' checkpoints are apart, whatever the length."""
    for module in op._kernels.backend("triton").modules:
        for T in [*range(1, 300), *(4**n + m for n in range(5, 16) for m in (-1, 0, 1))]:
            assert interval(T) == module.interval(T), T


def cases(name):
    """Cases of one rule by name."""
    w, op = WITNESSES[name], fwgen.compile(name)
    found = {"distances": lambda: distances(op)}
    for T in LENGTHS:
        for cuts in (False, True):
            key = f"shapes of {T}, packed" if cuts else f"shapes of {T}"
            found[key] = lambda T=T, cuts=cuts: shapes(w, op, T, cuts)
    for T in (1, 5):
        found[f"a graph for {T}"] = lambda T=T: same(w, op, T)
    return found


def main(form, *names):
    """Run all cases of the rules in one form."""
    choose(form)
    for name in names:
        for case, run in cases(name).items():
            fault = ""
            try:
                run()
            except Exception:
                fault = traceback.format_exc()[-1500:]
            print(json.dumps([name, case, fault]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
