"""Cases for Triton's interpreter, against the numpy interpreter of Step IR.

Run as `python interpreted.py FORM NAME...` with TRITON_INTERPRET=1, FORM being `registers` or
`memory`: one JSON line per case, `[name, fault]`, the fault being "" where all is well. Triton
reads the switch on import, hence a process.
"""

import json
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import torch
from forms import choose

from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.algebra.normal import normalise
from fwgen.emit.signature import signature_of
from fwgen.emit.triton import triton_sources
from fwgen.ir import interpret
from fwgen.language import load_rule, lower
from fwgen.runtime.triton_backend import TritonBackend

INPUTS = "{q: K, k: K, v: V, beta: scalar, g: scalar}"
DELTA = f"""
name: one
inputs: {INPUTS}
state: {{W: [V, K]}}
update: |
  W = exp(-abs(g)) * W
  W = W + beta * outer(v - W @ k, k)
output: W @ q
"""
SQUASHED = f"""
name: squashed
inputs: {INPUTS}
params: {{P: [V, V], b: K}}
buffers: {{s: scalar}}
state: {{W: {{dims: [V, K], init: 0.25}}, y: V}}
update: |
  h = tanh(P @ prev(y) + v)
  W = tanh(W) + sigmoid(beta) * outer(h - W @ softmax(k + b), k)
  y = W @ q * s
output: y
"""
NORMALISED = """
name: normalised
inputs: {q: K, k: K, v: V, g: scalar}
state: {W: [V, K], z: K}
update: |
  W = sigmoid(g) * W + outer(v, softplus(k))
  z = sigmoid(g) * z + softplus(k)
output: W @ softplus(q) / (dot(z, softplus(q)) + 0.1)
"""
EPILOGUE = """
name: epilogue
inputs: {q: K, k: K, v: V}
state: {W: [V, K]}
update: W = W + outer(v, k)
output: layernorm(W @ q) * sum(v)
"""
MOVES = """
name: moves
constants: {nu: 2}
inputs: {q: K, k: K, v: V, a: [2, K], g: scalar}
state: {W: [V, F], z: [F]}
feature_map:
  phi(x, b): |
    s = softmax(x)
    c = concat(s, roll(x, 2), max(x))
    concat(concat(c * roll(c, i) for i in range(1, nu + 1)), flatten(outer(b, s)), 0.5)
update: |
  kf = phi(k, a[1])
  z = 0.9 * roll(z, 1) + 0.1 * kf
  W = sigmoid(g) * W + outer(v, kf) - 0.1 * outer(W @ z, z)
output: W @ z + prev(z)[0] * max(v) * z[1:1 + size(V)]
"""
POSITION = """
name: position
inputs: {q: K, k: K, v: V, flag: scalar}
state: {W: [V, K], n: scalar}
update: |
  n = where(t % 3 == 1 and not t <= 2, n + 1, 0.5 * n)
  s = where(t % 2 == 0 or flag > 0, 1, 0.5) * v
  W = where(t % 4 == 0, 0.1, 0.9) * W + outer(s, k) * n
output: W @ q + n * size(K) ** 2
"""
NAMES = """
name: names
inputs: {tl: N, head: T, H: scalar, step: N, y: scalar, token_: N, d_y: T}
params: {saved: [N, N]}
state: {W: [T, B], i: B}
feature_map: {"phi(x)": "concat(x, 0.5)"}
update: |
  program = saved @ tl + H * step
  W = y * W + outer(head, phi(program))
  i = maximum(i, phi(token_)) + size(N)
output: W @ (phi(tl) * i) + d_y
"""
THIRD = """
name: third
inputs: {s: S, r: R, c: D, beta: scalar}
state: {A: [S, R, D]}
update: |
  u = einsum("ijk,i,j->k", A, s, r)
  A = A + beta * einsum("i,j,k->ijk", s, r, c - u)
output: einsum("ijk,j,i->k", A, r, s)
"""
WIDE = """
name: wide
inputs: {x: [V, K], q: K, g: scalar}
buffers: {M: [K, K]}
state: {W: [V, K], old: [V, K], S: {dims: [V, K], init: 0.5}}
update: |
  old = W
  W = exp(-abs(g)) * W @ M + x
  S = 0.5 * S + tanh(row(q) * x) * maximum(W, 0.1)
output: W * S + prev(old)
"""
SHARED = """
name: shared
inputs: {u: V, k: K}
params: {P: [V, K], Q: [K]}
state: {A: [V, K], B: [V, K], s: V, n: scalar}
update: |
  A = 0.5 * (A + B) + outer(u, k) * P
  B = A
  s = sum(A, axis=1) + max(B, axis=1)
  n = n + max(A) - min(B) + mean(s)
output: A @ Q + s * n
"""
ROLLED = """
name: rolled
inputs: {k: K}
buffers: {c: V}
params: {A: [V, V]}
state: {W: [V, F], h: V}
feature_map:
  phi(x): concat(1, x, square(x))
update: |
  W = row(roll(phi(k), 1)) * softmax(prev(W), axis=1)
  W = outer(c, phi(k)) + W
  h = A @ h
output: concat(c[1:V], h[0])
"""
NORM = """
name: norm_of_all
inputs: {s: S, r: R, c: D}
state: {A: [S, R, D]}
update: |
  A = 0.5 * A + einsum("i,j,k->ijk", s, r, c)
  A = A * rsqrt(1 + sum(square(A)))
output: einsum("ijk,i,j->k", A, s, r)
"""
MATRICES = """
name: matrices
inputs: {x: K, y: K, g: scalar}
params: {P: [K, K]}
state: {W: [K, K]}
update: W = W @ P + g * outer(x, y) + 0.1 * diag(x) @ W.T
output: x @ W + W @ y + norm(x)
"""
FUNCTIONS = [
    "exp(x)",
    "log(y)",
    "log1p(x)",
    "expm1(x)",
    "sqrt(y)",
    "rsqrt(y)",
    "abs(x)",
    "sign(x)",
    "sin(x)",
    "cos(x)",
    "tanh(x)",
    "sigmoid(x)",
    "logsigmoid(x)",
    "softplus(x)",
    "relu(x)",
    "elu(x)",
    "silu(x)",
    "gelu(x)",
    "square(x)",
    "maximum(x,y)",
    "minimum(x,-y)",
    "clamp(x,-1,0.5)",
    "x**3",
    "y**1.5",
    "x**-1",
    "y**0.5",
    "1/y",
]


def read(text):
    """The rule of a YAML text."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rule.yaml"
        file.write_text(text)
        return load_rule(file)


class Case:
    """A rule, its backend, and tensors of one call."""

    def __init__(self, text, sizes, *, B=1, T=5, H=2, dtype=torch.float32, groups=None):
        rule = read(text)
        step = lower(rule)
        self.backward = differentiate(hoist(step))
        self.step = self.backward.forward
        self.sizes, self.B, self.T, self.H, self.dtype = sizes, B, T, H, dtype
        signature = signature_of(rule.hash, step, normalise(step), [self.backward], ())
        self.backend = TritonBackend(signature, triton_sources(self.step, self.backward))
        self.random = torch.Generator().manual_seed(1)
        groups = groups or {}
        self.inputs = [self.draw(a, B, T, H // groups.get(a.name, 1)) for a in self.arrays("input")]
        self.params = [self.draw(a, H) for a in self.arrays("param")]
        self.buffers = [self.draw(a, H) for a in self.arrays("buffer")]

    def arrays(self, role):
        return [a for a in self.step.arrays if a.role == role]

    def draw(self, array, *lead):
        """A tensor inside a larger one of NaN: a read or write outside shows."""
        shape = (*lead, *(d.evaluate(self.sizes) for d in array.dims))
        x = 0.5 * torch.randn(shape, generator=self.random)
        if not array.floating:
            return x > 0
        around = torch.full([n + 2 for n in shape], float("nan"), dtype=self.dtype)
        view = around[tuple(slice(1, n + 1) for n in shape)]
        view.copy_(x)
        return view

    def start(self, sequences):
        return [
            self.draw(self.step.array(s.old), sequences, self.H).float() for s in self.step.states
        ]

    def golden(self, sequence, h, states, position, tokens, grad_y, grad_finals):
        """y, final states and gradients of one head, in float64."""
        inputs = {
            a.name: numpy(x[sequence, tokens, h // (self.H // x.shape[2])])
            for a, x in zip(self.arrays("input"), self.inputs, strict=True)
        }
        pairs = [*zip(self.arrays("param"), self.params, strict=True)]
        pairs += zip(self.arrays("buffer"), self.buffers, strict=True)
        call = (inputs, {a.name: numpy(x[h]) for a, x in pairs}, states, self.sizes)
        y, finals = interpret.run(self.step, *call, position)
        return (
            y,
            finals,
            interpret.run_backward(self.backward, *call, grad_y, grad_finals, position),
        )


def numpy(x):
    return x.double().numpy() if x.is_floating_point() else x.numpy()


def close(name, got, want, allowed):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{name}: shape {got.shape} is not {want.shape}"
    assert np.isfinite(got).all(), f"{name}: not finite"
    error, scale = np.abs(got - want).max(initial=0), max(1, np.abs(want).max(initial=0))
    assert error <= allowed * scale, f"{name}: error {error:.2e} > {allowed * scale:.2e}"


def check(
    text, sizes, *, allowed=2e-5, position=None, cuts=None, initial=True, loss="both", **options
):
    """Forward and backward of a rule, every sequence and head."""
    judge(Case(text, sizes, **options), allowed, position, cuts, initial, loss)


def judge(case, allowed=2e-5, position=None, cuts=None, initial=True, loss="both"):
    """Forward and backward of a case; `loss` is on `y`, `final`, `both`, or the `sum` of both.

    The gradients of a sum are one number expanded, with strides of zero.
    """
    N = case.B if cuts is None else len(cuts) - 1
    states = case.start(N) if initial else [None] * len(case.step.states)
    packed = None if cuts is None else torch.tensor(cuts)
    at = None if position is None else torch.tensor(position)
    call = (case.inputs, case.params, case.buffers, states, packed, at)
    y, finals, _ = case.backend.forward(*call, training=True, want_final=True)
    assert y.dtype == case.dtype and all(f.dtype == torch.float32 for f in finals)
    again, _, _ = case.backend.forward(*call, training=False, want_final=False)
    assert torch.equal(y, again), "without training (one token: the step kernel)"

    def seed(x, alone):
        if loss not in (alone, "both", "sum"):
            return None
        if loss == "sum":
            return torch.ones((), dtype=x.dtype).expand(x.shape)
        return torch.randn(x.shape, generator=case.random).to(x.dtype)

    grad_y, grad_finals = seed(y, "y"), [seed(f, "final") for f in finals]
    wanted = [True] * (len(case.inputs) + len(case.params) + len(states))
    found = case.backend.backward(*call, [], grad_y, grad_finals, wanted)
    params = [np.zeros(x.shape) for x in case.params]
    names = [s.name for s in case.step.states]
    for n, h in np.ndindex(N, case.H):
        b, tokens = (n, slice(None)) if cuts is None else (0, slice(cuts[n], cuts[n + 1]))
        old = {s: numpy(x[n, h]) for s, x in zip(names, states, strict=True) if x is not None}
        want_y, want_finals, want = case.golden(
            b,
            h,
            old,
            0 if position is None else position[n],
            tokens,
            None if grad_y is None else numpy(grad_y[b, tokens, h]),
            {s: numpy(g[n, h]) for s, g in zip(names, grad_finals, strict=True) if g is not None},
        )
        close("y", y[b, tokens, h].float(), want_y, allowed)
        for s, final, gradient in zip(names, finals, found[-len(names) :], strict=True):
            close(f"final {s}", final[n, h], want_finals[s], allowed)
            close(f"d initial {s}", gradient[n, h], want["state", s], allowed)
        for array, gradient in zip(case.arrays("input"), found, strict=False):
            if array.name in want:
                close(f"d {array.name}", gradient[b, tokens, h], want[array.name], allowed)
        for total, array in zip(params, case.arrays("param"), strict=True):
            total[h] += want[array.name]
    for total, array, gradient in zip(
        params, case.arrays("param"), found[len(case.inputs) :], strict=False
    ):
        close(f"d {array.name}", gradient, total, allowed)


def check_function(formula):
    """One element-wise function over a wide range, its value to a few units in the last place."""
    text = f"name: f\ninputs: {{x: K, y: K}}\nstate: {{s: K}}\nupdate: s = x\noutput: {formula}\n"
    case = Case(text, {"K": 64}, T=1, H=1)
    x = torch.cat([torch.logspace(-6, 1.2, 32), -torch.logspace(-6, -0.001, 32)])
    case.inputs = [x.view(1, 1, 1, 64), x.abs().flip(0).view(1, 1, 1, 64)]
    y, _, _ = case.backend.forward(case.inputs, [], [], [None], None, None, False, False)
    want, _, _ = case.golden(0, 0, {}, 0, slice(None), None, {})
    got = y[0, :, 0].double().numpy()
    error = np.abs(got - want) / (np.abs(want) + 1e-7)
    assert error.max() < 2e-6, f"{formula}: relative error {error.max():.1e}"


def check_wanted():
    """Only what is asked for is computed."""
    case = Case(SQUASHED, {"K": 3, "V": 2}, T=3)
    call = (case.inputs, case.params, case.buffers, case.start(1), None, None)
    y, finals, _ = case.backend.forward(*call, training=True, want_final=False)
    assert finals == []
    everything = case.backend.backward(*call, [], y, [None, None], [True] * 9)
    for n in range(9):
        wanted = [m == n for m in range(9)]
        one = case.backend.backward(*call, [], y, [None, None], wanted)
        assert [g is not None for g in one] == wanted
        assert torch.equal(one[n], everything[n])


def check_bound():
    """A block beside which no loop has anything to walk has a bound, which the error names."""
    case = Case(NORM, {"S": 2, "R": 2, "D": 2}, T=1, H=1)
    case.inputs = [torch.zeros(1, 1, 1, 512) for _ in range(3)]
    try:
        case.backend.forward(case.inputs, [], [], [None], None, None, False, False)
    except Exception as error:
        assert type(error).__name__ == "UnsupportedError", error
        assert "S = 512, R = 512, D = 512" in str(error) and "65536" in str(error), error
    else:
        raise AssertionError("accepted")


def check_offsets():
    """Tokens and heads of an input that lie more than 2^31 elements apart."""
    far = 2**31 + 3
    case = Case(DELTA, K5, T=2, H=2)
    memory = torch.empty(4 * far, dtype=torch.float16)  # only what is touched takes memory
    for n, x in enumerate(case.inputs):
        shape = x.shape[3:]
        steps = [1] * len(shape)
        view = memory[100 * n :].as_strided(x.shape, (0, 2 * far, far, *steps))
        view.copy_(x)
        case.inputs[n] = view
    case.dtype = torch.float16
    judge(case, 2e-3)


K5, SQUARE = {"K": 5, "V": 3}, {"K": 4, "V": 3}
CASES = {
    "delta": lambda: check(DELTA, K5, B=2),
    "tiles": lambda: check(DELTA, {"K": 130, "V": 17}, T=3, H=1),
    "blocks": lambda: check(DELTA, {"K": 16, "V": 16}, T=3, H=1),
    "one token": lambda: check(DELTA, K5, T=1),
    "no token": lambda: check(DELTA, K5, T=0),
    "final only": lambda: check(DELTA, K5, loss="final"),
    "output only": lambda: check(NORMALISED, K5, loss="y", initial=False),
    "packed": lambda: check(DELTA, K5, T=9, cuts=[0, 4, 4, 9]),
    "packed nonlinear": lambda: check(SQUASHED, K5, T=7, cuts=[0, 1, 7]),
    "grouped heads": lambda: check(DELTA, K5, T=3, H=4, groups={"q": 2, "k": 4, "beta": 2}),
    "bfloat16": lambda: check(DELTA, K5, dtype=torch.bfloat16, allowed=5e-3, H=1),
    "float16": lambda: check(SQUASHED, K5, dtype=torch.float16, allowed=1e-3, H=1),
    "squashed": lambda: check(SQUASHED, K5, T=6, B=2),
    "start value": lambda: check(SQUASHED, K5, T=2, initial=False),
    "normalised": lambda: check(NORMALISED, {"K": 130, "V": 17}, T=3, H=1, allowed=5e-5),
    "epilogue": lambda: check(EPILOGUE, K5),
    "moves": lambda: check(MOVES, {"K": 3, "V": 2}, T=3, H=1, allowed=5e-5),
    "position": lambda: check(POSITION, K5, T=7, B=2, H=1, position=[0, 5]),
    "names": lambda: check(NAMES, {"N": 3, "T": 2}, T=3),
    "third order": lambda: check(THIRD, {"S": 3, "R": 2, "D": 5}, T=3),
    "third order, whole": lambda: check(NORM, {"S": 3, "R": 9, "D": 2}, T=3),
    "matrices": lambda: check(MATRICES, SQUARE, T=3),
    "wanted": check_wanted,
    "bound": check_bound,
    "offsets": check_offsets,
    "rolled, buffers first": lambda: check(ROLLED, {"K": 4, "V": 3}, T=2),
    "wide": lambda: check(WIDE, {"K": 5, "V": 3}, T=4, B=2),
    "wide output only": lambda: check(WIDE, {"K": 5, "V": 3}, T=3, loss="y", initial=False),
    "wide bfloat16": lambda: check(WIDE, K5, T=2, dtype=torch.bfloat16, allowed=1e-2),
    "shared": lambda: check(SHARED, {"K": 9, "V": 5}, T=5),
    "sizes of one": lambda: check(SHARED, {"K": 1, "V": 1}, T=2),
    "sizes of eight": lambda: check(MATRICES, {"K": 8}, T=3, H=1),
    "a sum": lambda: check(SQUASHED, K5, T=3, loss="sum"),
    "a sum over tiles": lambda: check(NORMALISED, {"K": 8, "V": 1}, T=3, loss="sum"),
    "empty sequences": lambda: check(WIDE, K5, T=4, cuts=[0, 0, 3, 3, 4, 4], H=1),
    "no sequence": lambda: check(SHARED, K5, T=0, cuts=[0]),
    "no batch": lambda: check(SQUASHED, K5, B=0, T=3),
    "many tokens": lambda: check(SHARED, {"K": 2, "V": 2}, T=40, H=1, allowed=1e-4),
    "grouped wide": lambda: check(WIDE, K5, T=2, H=4, groups={"x": 4, "g": 2}),
    **{f: (lambda f=f: check_function(f)) for f in FUNCTIONS},
}


IN_REGISTERS = {"bound", *FUNCTIONS}
"""Cases that do not depend on where states lie."""


def main(form, names):
    choose(form)
    for name in names or CASES:
        if form == "memory" and name in IN_REGISTERS:
            continue
        try:
            CASES[name]()
            fault = ""
        except Exception:
            fault = traceback.format_exc()
        print(json.dumps([name, fault]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
