"""Steps built by hand, as lowering would build them: for tests below the language."""

from __future__ import annotations

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import (
    Apply,
    Array,
    Const,
    Index,
    Load,
    Scalar,
    Size,
    State,
    Statement,
    Step,
    Var,
)

K, V, D = Dim.of("K"), Dim.of("V"), Dim.of("D")


def ap(op: str, *args: Scalar) -> Apply:
    return Apply(op, args)


def at(array: str, *places: Var | Index | int) -> Load:
    return Load(array, index(*places))


def index(*places: Var | Index | int) -> tuple[Index, ...]:
    return tuple(p if isinstance(p, Index) else Index.of(p) for p in places)


def outer_product(u: Scalar, w: Scalar) -> Scalar:
    return ap("mul", u, w)


def _arrays(role: str, **dims: tuple[Dim, ...]) -> list[Array]:
    return [Array(name, d, role, of=name) for name, d in dims.items()]  # type: ignore[arg-type]


i, j, l = Var("i", V), Var("j", K), Var("l", K)  # noqa: E741


def _write(rate: Scalar, old: Scalar, key: str, read: str = "p") -> Scalar:
    difference = ap("sub", at("v", i), at(read, i))
    return ap("add", old, ap("mul", rate, ap("mul", difference, at(key, j))))


def delta() -> Step:
    """W + beta * outer(v - W @ k, k)."""
    arrays = [
        *_arrays("input", q=(K,), k=(K,), v=(V,), beta=()),
        *_arrays("state", W=(V, K)),
        *_arrays("local", p=(V,), W_1=(V, K), y=(V,)),
    ]
    statements = (
        Statement("p", index(i), ap("mul", at("W", i, j), at("k", j)), (j,), "sum", line=1),
        Statement("W_1", index(i, j), _write(at("beta"), at("W", i, j), "k"), line=1),
        Statement("y", index(i), ap("mul", at("W_1", i, j), at("q", j)), (j,), "sum", line=2),
    )
    return Step("delta", tuple(arrays), statements, (State("W", "W", "W_1"),), "y")


def gated_delta() -> Step:
    """A scalar decay, a sigmoid rate and a scaled read."""
    arrays = [
        *_arrays("input", q=(K,), k=(K,), v=(V,), g=(), beta=()),
        *_arrays("state", W=(V, K)),
        *_arrays("local", W_1=(V, K), p=(V,), W_2=(V, K), y=(V,)),
    ]
    rate = ap("sigmoid", at("beta"))
    scaled = ap("mul", ap("rsqrt", Size(K)), at("W_2", i, j))
    statements = (
        Statement("W_1", index(i, j), ap("mul", ap("exp", at("g")), at("W", i, j)), line=1),
        Statement("p", index(i), ap("mul", at("W_1", i, j), at("k", j)), (j,), "sum", line=2),
        Statement("W_2", index(i, j), _write(rate, at("W_1", i, j), "k"), line=2),
        Statement("y", index(i), ap("mul", scaled, at("q", j)), (j,), "sum", line=3),
    )
    return Step("gated_delta", tuple(arrays), statements, (State("W", "W", "W_2"),), "y")


def diagonal() -> Step:
    """W @ diag(exp(g)) + outer(v, k), from a learned start."""
    arrays = [
        *_arrays("input", q=(K,), k=(K,), v=(V,), g=(K,)),
        *_arrays("state", W=(V, K)),
        *_arrays("local", W_1=(V, K), y=(V,)),
    ]
    decayed = ap("mul", ap("exp", at("g", j)), at("W", i, j))
    written = ap("add", decayed, ap("mul", at("v", i), at("k", j)))
    statements = (
        Statement("W_1", index(i, j), written, line=1),
        Statement("y", index(i), ap("mul", at("W_1", i, j), at("q", j)), (j,), "sum", line=2),
    )
    return Step("diagonal", tuple(arrays), statements, (State("W", "W", "W_1", None),), "y")


def _features(x: str, name: str) -> tuple[list[Array], list[Statement]]:
    """One roll of relu(concat(x, -x)), sum-normalised."""
    wide = K + K
    m, n = Var("j", K), Var("j", wide)
    r, e, s = f"r_{name}", f"e_{name}", f"s_{name}"
    rolled = Index(Index.of(n).terms, Dim.of(-1), wide)
    arrays = _arrays("local", **{r: (wide,), e: (wide,), s: (), name: (wide,)})
    shifted = Index(Index.of(m).terms, K)
    statements = [
        Statement(r, index(m), ap("relu", at(x, m)), line=1),
        Statement(r, (shifted,), ap("relu", ap("neg", at(x, m))), line=1),
        Statement(e, index(n), ap("mul", at(r, n), at(r, rolled)), line=1),
        Statement(s, (), at(e, n), (n,), "sum", line=1),
        Statement(name, index(n), ap("div", at(e, n), ap("add", at(s), Const(1e-2))), line=1),
    ]
    return arrays, statements


def dpfp() -> Step:
    """The delta rule on features: concat, roll, sum_normalize."""
    f = Var("j", K + K)
    key_arrays, key = _features("k", "kf")
    query_arrays, query = _features("q", "qf")
    arrays = [
        *_arrays("input", q=(K,), k=(K,), v=(V,), beta=()),
        *_arrays("state", W=(V, K + K)),
        *key_arrays,
        *query_arrays,
        *_arrays("local", p=(V,), W_1=(V, K + K), y=(V,)),
    ]
    difference = ap("sub", at("v", i), at("p", i))
    written = ap("mul", ap("sigmoid", at("beta")), ap("mul", difference, at("kf", f)))
    statements = (
        *key,
        Statement("p", index(i), ap("mul", at("W", i, f), at("kf", f)), (f,), "sum", line=2),
        Statement("W_1", index(i, f), ap("add", at("W", i, f), written), line=2),
        *query,
        Statement("y", index(i), ap("mul", at("W_1", i, f), at("qf", f)), (f,), "sum", line=3),
    )
    states = (State("W", "W", "W_1"),)
    return Step("dpfp", tuple(arrays), statements, states, "y", (("F", K + K),))


def tanh_state() -> Step:
    """tanh(W) + beta * outer(v - W @ k, k)."""
    arrays = [
        *_arrays("input", q=(K,), k=(K,), v=(V,), beta=()),
        *_arrays("state", W=(V, K)),
        *_arrays("local", p=(V,), W_1=(V, K), y=(V,)),
    ]
    squashed = _write(at("beta"), ap("tanh", at("W", i, j)), "k")
    statements = (
        Statement("p", index(i), ap("mul", at("W", i, j), at("k", j)), (j,), "sum", line=1),
        Statement("W_1", index(i, j), squashed, line=1),
        Statement("y", index(i), ap("mul", at("W_1", i, j), at("q", j)), (j,), "sum", line=2),
    )
    return Step("tanh_state", tuple(arrays), statements, (State("W", "W", "W_1", 0.25),), "y")


def _softmax(x: str, name: str, dim: Dim) -> tuple[list[Array], list[Statement]]:
    n = Var("i", dim)
    m, e, s = f"m_{name}", f"e_{name}", f"s_{name}"
    arrays = _arrays("local", **{m: (), e: (dim,), s: (), name: (dim,)})
    stopped = ap("sub", at(x, n), ap("stop_gradient", at(m)))
    statements = [
        Statement(m, (), at(x, n), (n,), "max", line=1),
        Statement(e, index(n), ap("exp", stopped), line=1),
        Statement(s, (), at(e, n), (n,), "sum", line=1),
        Statement(name, index(n), ap("div", at(e, n), at(s)), line=1),
    ]
    return arrays, statements


def recurrent_input() -> Step:
    """The last output re-enters the key through a per-head matrix and a softmax."""
    a, b = Var("i", D), Var("j", D)
    soft_arrays, soft = _softmax("ka", "kk", D)
    arrays = [
        *_arrays("input", q=(D,), k=(D,), v=(D,), beta=()),
        *_arrays("param", R=(D, D)),
        *_arrays("state", W=(D, D), y=(D,)),
        *soft_arrays,
        *_arrays("local", h=(D,), rh=(D,), ka=(D,), p=(D,), W_1=(D, D), y_1=(D,)),
    ]
    difference = ap("sub", at("v", a), at("p", a))
    written = ap("mul", ap("sigmoid", at("beta")), ap("mul", difference, at("kk", b)))
    statements = (
        Statement("h", index(a), ap("tanh", at("y", a)), line=1),
        Statement("rh", index(a), ap("mul", at("R", a, b), at("h", b)), (b,), "sum", line=2),
        Statement("ka", index(a), ap("add", at("k", a), at("rh", a)), line=2),
        *soft,
        Statement("p", index(a), ap("mul", at("W", a, b), at("kk", b)), (b,), "sum", line=3),
        Statement("W_1", index(a, b), ap("add", at("W", a, b), written), line=3),
        Statement("y_1", index(a), ap("mul", at("W_1", a, b), at("q", b)), (b,), "sum", line=4),
    )
    states = (State("W", "W", "W_1"), State("y", "y", "y_1"))
    return Step("recurrent_input", tuple(arrays), statements, states, "y_1")


STEPS = {
    step.name: step
    for step in (delta(), gated_delta(), diagonal(), dpfp(), tanh_state(), recurrent_input())
}
