"""The generated PyTorch token loop against the numpy interpreter, which shares no printing code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fwgen
from fwgen.emit.reference import reference_source
from fwgen.ir import interpret
from fwgen.ir.dims import ONE, Dim
from fwgen.ir.nodes import (
    Apply,
    Array,
    Const,
    Index,
    IndexValue,
    Load,
    Position,
    Scalar,
    Size,
    State,
    Statement,
    Step,
    Var,
)

K, V = Dim.of("K"), Dim.of("V")
ROW, COL = Var("i", V), Var("j", K)
M = Var("m", K * 2)
SIZES = {"K": 4, "V": 3}
B, T, H = 2, 5, 3


def at(name: str, *index: Var | Index | int) -> Load:
    return Load(name, tuple(i if isinstance(i, Index) else Index.of(i) for i in index))


def ap(op: str, *args: Scalar) -> Apply:
    return Apply(op, args)


def put(
    target: str, index: tuple[Any, ...], body: Scalar, *over: Var, reduce: Any = None
) -> Statement:
    reduce = reduce or ("sum" if over else None)
    places = tuple(i if isinstance(i, Index) else Index.of(i) for i in index)
    return Statement(target, places, body, over, reduce)


BASE = (
    Array("q", (K,), "input"),
    Array("k", (K,), "input"),
    Array("v", (V,), "input"),
    Array("beta", (), "input"),
    Array("W", (V, K), "state"),
)
WRITE = put("W_1", (ROW, COL), ap("add", at("W", ROW, COL), ap("mul", at("v", ROW), at("k", COL))))
READ = put("y", (ROW,), ap("mul", at("W_1", ROW, COL), at("q", COL)), COL)


def step(*statements: Statement, **extra: tuple[Dim, ...]) -> Step:
    """A step over the usual inputs; `extra` are the dims of further locals."""
    local = {"W_1": (V, K), "y": (V,), **extra}
    arrays = BASE + tuple(Array(name, dims, "local") for name, dims in local.items())
    return Step("case", arrays, statements, (State("W", "W", "W_1"),), "y")


def delta() -> Step:
    write = ap("mul", at("beta"), ap("sub", at("v", ROW), at("p", ROW)), at("k", COL))
    return step(
        put("p", (ROW,), ap("mul", at("W", ROW, COL), at("k", COL)), COL),
        put("W_1", (ROW, COL), ap("add", at("W", ROW, COL), write)),
        READ,
        p=(V,),
    )


def features() -> Step:
    """concat, roll, a slice, softmax parts, a product of three in one sum."""
    shifted = Index(((ONE, M),), Dim.of(-1), K * 2)
    body = ap("sub", at("r", M), ap("stop_gradient", at("top")))
    return step(
        put("z", (COL,), ap("relu", at("q", COL))),
        put("z", (Index(((ONE, COL),), K),), ap("relu", ap("neg", at("q", COL)))),
        put("r", (M,), ap("mul", at("z", M), at("z", shifted))),
        put("top", (), at("r", M), M, reduce="max"),
        put("e", (M,), ap("exp", body)),
        put("s", (), at("e", M), M),
        put("n", (COL,), ap("div", at("e", Index(((ONE, COL),), K)), at("s"))),
        WRITE,
        put("y", (ROW,), ap("mul", at("W_1", ROW, COL), at("n", COL), at("k", COL)), COL),
        z=(K * 2,),
        r=(K * 2,),
        top=(),
        e=(K * 2,),
        s=(),
        n=(K,),
    )


def positions() -> Step:
    """`t`, `eye`, sizes, a fixed position, an outer product flattened and read back."""
    flat = Index(((K, ROW), (ONE, COL)))
    reset = ap("eq", ap("mod", Position(), Const(3)), Const(0))
    same = ap("eq", IndexValue(Index.of(ROW)), IndexValue(Index.of(COL)))
    clock = ap("div", at("v", ROW), ap("add", Position(), Const(1)))
    old = ap("mul", ap("select", reset, Const(0.1), Const(1)), at("W", ROW, COL))
    return step(
        put("o", (flat,), ap("mul", at("v", ROW), at("k", COL))),
        put("d", (ROW, COL), ap("select", same, ap("mul", clock, ap("rsqrt", Size(K))), Const(0))),
        put("W_1", (ROW, COL), ap("add", old, at("o", flat), at("d", ROW, COL))),
        put("y", (ROW,), ap("mul", at("W_1", ROW, 1), ap("sqrt", ap("add", Position(), Const(2))))),
        o=(V * K,),
        d=(V, K),
    )


def kinks() -> Step:
    """A norm that may be 0, ties, clamps, and a branch not taken whose derivative is infinite."""
    norm = ap("select", ap("gt", at("n2"), Const(0)), ap("sqrt", at("n2")), Const(0))
    branch = ap(
        "select", ap("gt", at("v", ROW), Const(0)), ap("log", at("v", ROW)), ap("abs", at("v", ROW))
    )
    write = ap("mul", at("u", ROW), ap("maximum", at("k", COL), at("q", COL)), at("n"))
    return step(
        put("n2", (), ap("square", at("k", COL)), COL),
        put("n", (), norm),
        put("u", (ROW,), ap("clamp", branch, Const(-1.0), Const(1))),
        put("W_1", (ROW, COL), ap("add", at("W", ROW, COL), write)),
        put("y", (ROW,), ap("softplus", at("W_1", ROW, COL)), COL, reduce="min"),
        n2=(),
        n=(),
        u=(V,),
    )


CASES = [delta, features, positions, kinks]


def load(case: Step) -> dict[str, Any]:
    module: dict[str, Any] = {}
    exec(compile(reference_source(case), "reference.py", "exec"), module)
    return module


def draw(seed: int = 0, tokens: int = T) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (4,), "k": (4,), "v": (3,), "beta": ()}
    inputs = {
        name: torch.randn(B, tokens, H, *dims, generator=generator, dtype=torch.float64)
        for name, dims in shapes.items()
    }
    return inputs, torch.randn(B, H, 3, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_agrees_with_the_interpreter(case: Any) -> None:
    inputs, W = draw()
    y, final = load(case())["reference"](inputs, {}, {}, {"W": W}, torch.tensor([0, 4]))
    for b in range(B):
        for h in range(H):
            rows = {name: x[b, :, h].numpy() for name, x in inputs.items()}
            want, states = interpret.run(case(), rows, {}, {"W": W[b, h].numpy()}, SIZES, 4 * b)
            np.testing.assert_allclose(y[b, :, h].numpy(), want, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(final["W"][b, h].numpy(), states["W"], rtol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_gradients(case: Any) -> None:
    inputs, W = draw(1, 3)
    run = load(case())["reference"]

    def loss(*tensors: torch.Tensor) -> torch.Tensor:
        y, final = run(dict(zip(inputs, tensors[:-1], strict=True)), {}, {}, {"W": tensors[-1]}, 1)
        return y.sin().sum() + final["W"].cos().sum()

    leaves = [t.requires_grad_() for t in (*inputs.values(), W)]
    assert torch.autograd.gradcheck(loss, leaves)


SHAPES = [K, K * 2, K * V, K * K, K * V * 3, K + V, K * V + 1, K * 2 - 1, K - V]


@pytest.mark.parametrize("size", SHAPES, ids=str)
def test_sizes_bind_as_tightly_as_they_must(size: Dim) -> None:
    """A size at every place of every operator: no product falls apart as a divisor."""
    n, x = Size(size), at("v", ROW)
    values = [
        *(ap(op, x, n) for op in ("add", "sub", "mul", "div")),
        *(ap(op, n, ap("exp", x)) for op in ("add", "sub", "mul", "div")),
        ap("neg", n),
        ap("pow", n, Const(-1.5)),
        ap("rsqrt", n),
        ap("mod", Position(), n),
        ap("div", ap("div", x, n), n),
        ap("div", x, ap("mul", n, n)),
        ap("square", ap("sub", x, n)),
    ]
    out = [put(f"o{number}", (ROW,), value) for number, value in enumerate(values)]
    total = ap("add", *(at(statement.target, ROW) for statement in out))
    extra = {statement.target: (V,) for statement in out}
    case = step(WRITE, *out, put("y", (ROW,), total), **extra)
    inputs, W = draw()
    y, _ = load(case)["reference"](inputs, {}, {}, {"W": W})
    rows = {name: x[0, :, 0].numpy() for name, x in inputs.items()}
    want, _ = interpret.run(case, rows, {}, {"W": W[0, 0].numpy()}, SIZES, 0)
    np.testing.assert_allclose(y[0, :, 0].numpy(), want, rtol=1e-12)


def test_zero_key_and_untaken_branch_give_finite_gradients() -> None:
    inputs, W = draw(2)
    inputs["k"] = torch.zeros_like(inputs["k"]).requires_grad_()
    inputs["v"] = torch.zeros_like(inputs["v"]).requires_grad_()
    y, _ = load(kinks())["reference"](inputs, {}, {}, {"W": W})
    y.sum().backward()
    assert inputs["k"].grad.isfinite().all() and inputs["v"].grad.isfinite().all()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_no_tokens(case: Any) -> None:
    inputs, W = draw(3, 0)
    y, final = load(case())["reference"](inputs, {}, {}, {"W": W})
    assert y.shape == (B, 0, H, 3) and y.dtype == torch.float64
    assert torch.equal(final["W"], W)


def test_names_that_python_needs() -> None:
    """Arrays called like the module's own names, params, and a size that only `3*K + 1` gives."""
    d = Dim.of("D")
    j, m = Var("j", d), Var("l", d * 3 + 1)
    arrays = (
        Array("torch", (d * 3 + 1,), "input"),
        Array("outputs", (d * 3 + 1,), "param"),
        Array("functional", (d,), "local"),
        Array("states", (d,), "state"),
        Array("index", (d,), "local"),
    )
    statements = (
        put("functional", (j,), ap("mul", at("torch", m), at("outputs", m)), m),
        put("index", (j,), ap("add", at("states", j), ap("mul", at("functional", j), Size(d)))),
    )
    case = Step("names", arrays, statements, (State("states", "states", "index"),), "index")
    x, w = torch.randn(B, T, H, 7), torch.randn(H, 7)
    y, final = load(case)["reference"](
        {"torch": x}, {"outputs": w}, {}, {"states": torch.zeros(B, H, 2)}
    )
    want = 2 * (x * w).sum(-1).cumsum(1)
    torch.testing.assert_close(y, want[..., None].expand(B, T, H, 2))
    assert torch.equal(final["states"], y[:, -1])


def test_text_is_deterministic_and_short() -> None:
    assert reference_source(delta()) == reference_source(delta())
    assert len(reference_source(delta()).splitlines()) < 200


NAMED = """\
name: named
inputs: {q: SIZE, g: scalar}
state: {W: [SIZE, SIZE]}
update: |
  W = tanh(W + eye(SIZE) / size(SIZE) + t) + outer(gelu(q), where(g > 0, q / g, q))
output: W @ concat(q[1:SIZE], q[0])
"""


@pytest.mark.parametrize("dim", ["torch", "functional", "math", "Tensor", "lead", "step", "out"])
def test_a_dim_may_be_called_like_anything(dim: str, tmp_path: Path) -> None:
    """Its size has a use: a name of the module would be gone, or mean something else."""
    q, g = torch.randn(1, 3, 1, 4), torch.randn(1, 3, 1)
    found = []
    for name in (dim, "D"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(NAMED.replace("SIZE", name), encoding="utf-8")
        found.append(fwgen.compile(path)(q, g, backend="reference")[0])
    assert torch.equal(*found)
