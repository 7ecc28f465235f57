"""Run rules under Triton's interpreter against the numpy interpreter of Step IR."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.algebra.normal import normalise
from fwgen.emit.signature import signature_of
from fwgen.emit.triton import triton_sources
from fwgen.ir import interpret
from fwgen.ir.nodes import Backward
from fwgen.language import load_rule, lower
from fwgen.runtime.triton_backend import TritonBackend


class Case:
    """A rule, its Triton backend, and random tensors of one call in float32."""

    def __init__(self, source, sizes, *, B=1, T=5, H=2, seed=0, dtype=torch.float32, draw=None):
        rule = load_rule(source)
        self.backward: Backward = differentiate(hoist(lower(rule)))
        self.step = self.backward.forward
        self.sizes, self.B, self.T, self.H, self.dtype = sizes, B, T, H, dtype
        self.sources = triton_sources(self.step, self.backward)
        self.signature = signature_of(
            rule.hash, lower(rule), normalise(lower(rule)), self.backward, ()
        )
        self.backend = TritonBackend(self.signature, self.sources)
        self.generator = torch.Generator().manual_seed(seed)
        draw = draw or {}
        self.inputs = [
            self._draw(a, B, T, H, scale=draw.get(a.name)) for a in self._arrays("input")
        ]
        self.params = [self._draw(a, H) for a in self._arrays("param")]
        self.buffers = [self._draw(a, H) for a in self._arrays("buffer")]
        self.states = [self._draw(self.step.array(s.old), B, H).float() for s in self.step.states]

    def _arrays(self, role):
        return [a for a in self.step.arrays if a.role == role]

    def shape(self, array):
        return [d.evaluate(self.sizes) for d in array.dims]

    def _draw(self, array, *lead, scale=None):
        x = torch.randn(*lead, *self.shape(array), generator=self.generator)
        x = 0.5 * x if scale is None else scale(x)
        return x.to(self.dtype) if array.floating else (x > 0).to(torch.int32)

    def expected(self, b, h, grad_y, grad_finals, position=0, tokens=slice(None)):
        """y, final states and gradients of one sequence and head, by the numpy interpreter."""
        group = [self.H // x.shape[2] for x in self.inputs]
        inputs = {
            a.name: _numpy(x[b, tokens, h // g])
            for a, x, g in zip(self._arrays("input"), self.inputs, group, strict=True)
        }
        heads = {
            a.name: _numpy(x[h])
            for role, tensors in (("param", self.params), ("buffer", self.buffers))
            for a, x in zip(self._arrays(role), tensors, strict=True)
        }
        return inputs, heads


def _numpy(x):
    x = x.detach()
    return x.double().numpy() if x.is_floating_point() else x.numpy()


def assert_close(name, got, want, allowed):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{name}: shape {got.shape} is not {want.shape}"
    assert np.isfinite(got).all(), f"{name}: not finite"
    if got.size:
        error, scale = np.abs(got - want).max(), max(1.0, np.abs(want).max())
        assert error <= allowed * scale, f"{name}: error {error:.2e} > {allowed * scale:.2e}"


def check(case, *, allowed=5e-5, position=None, cuts=None, initial=True, loss="both"):
    """Forward and backward of a case against the interpreter, every sequence and head."""
    B, T, H = case.B, case.T, case.H
    N = B if cuts is None else len(cuts) - 1
    states = [s[:1].expand(N, *s.shape[1:]) * (1 + torch.arange(N).view(-1, *[1] * (s.dim() - 1)))
              for s in case.states]
    states = [0.3 * s for s in states] if initial else [None] * len(states)
    cu = None if cuts is None else torch.tensor(cuts)
    start = None if position is None else torch.tensor(position)
    call = (case.inputs, case.params, case.buffers, states, cu, start)
    y, finals, _ = case.backend.forward(*call, training=True, want_final=True)
    g = case.generator
    grad_y = torch.randn(y.shape, generator=g).to(case.dtype) if loss != "final" else None
    grad_finals = [torch.randn(f.shape, generator=g) if loss != "y" else None for f in finals]
    count = len(case.inputs) + len(case.params) + len(states)
    found = case.backend.backward(*call, [], grad_y, grad_finals, [True] * count)
    names = [a.name for a in case.step.arrays if a.role in ("input", "param")]
    totals = {n: 0.0 for n in names}
    for n in range(N):
        b, tokens = (n, slice(None)) if cuts is None else (0, slice(cuts[n], cuts[n + 1]))
        for h in range(H):
            inputs, heads = case.expected(b, h, None, None, tokens=tokens)
            old = {
                s.name: _numpy(x[n, h]) for s, x in zip(case.step.states, states, strict=True)
                if x is not None
            }
            at = 0 if position is None else position[n]
            want_y, want_final = interpret.run(case.step, inputs, heads, old, case.sizes, at)
            where = f"[{n}, {h}]"
            assert_close(f"y{where}", y[b, tokens, h].float(), want_y, allowed)
            for s, f in zip(case.step.states, finals, strict=True):
                assert_close(f"final {s.name}{where}", f[n, h], want_final[s.name], allowed)
            want = interpret.run_backward(
                case.backward, inputs, heads, old, case.sizes,
                None if grad_y is None else _numpy(grad_y[b, tokens, h]),
                {s.name: _numpy(x[n, h]) for s, x in zip(case.step.states, grad_finals, strict=True)
                 if x is not None},
                at,
            )
            for k, array in enumerate(case._arrays("input")):
                if array.name in want:
                    assert_close(f"d {array.name}{where}", found[k][b, tokens, h], want[array.name], allowed)
            for array in case._arrays("param"):
                totals[array.name, h] = totals.get((array.name, h), 0.0) + want[array.name]
            for s, d in zip(case.step.states, found[count - len(states):], strict=True):
                assert_close(f"d state {s.name}{where}", d[n, h], want["state", s.name], allowed)
    for k, array in enumerate(case._arrays("param")):
        for h in range(H):
            got = found[len(case.inputs) + k][h]
            assert_close(f"d {array.name}[{h}]", got, totals[array.name, h], allowed)
