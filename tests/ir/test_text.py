"""The readable dump: parentheses only where the structure needs them."""

from __future__ import annotations

import pytest

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Const, Index, IndexValue, Load, Position, Scalar, Size, Statement, Var
from fwgen.ir.text import dump, index_text, scalar_text, statement_text
from steps import STEPS, ap, at, index

A, B, C = Load("a"), Load("b"), Load("c")
K = Dim.of("K")
i, j = Var("i", K), Var("j", Dim.of("V"))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (ap("add", A, ap("mul", B, C)), "a + b * c"),
        (ap("mul", A, ap("add", B, C)), "a * (b + c)"),
        (ap("sub", A, ap("sub", B, C)), "a - (b - c)"),
        (ap("sub", A, ap("add", B, C)), "a - (b + c)"),
        (ap("sub", ap("sub", A, B), C), "a - b - c"),
        (ap("add", A, ap("neg", B)), "a - b"),
        (ap("add", A, ap("neg", ap("add", B, C))), "a - (b + c)"),
        (ap("mul", A, ap("neg", B)), "a * (-b)"),
        (ap("neg", ap("mul", A, B)), "-a * b"),
        (ap("div", A, ap("mul", B, C)), "a / (b * c)"),
        (ap("mul", ap("div", A, B), C), "a / b * c"),
        (ap("div", A, ap("div", B, C)), "a / (b / c)"),
        (ap("mul", A, ap("div", B, C)), "a * (b / c)"),
        (ap("pow", ap("add", A, B), Const(3)), "(a + b) ** 3"),
        (ap("pow", A, Const(-1.0)), "a ** (-1)"),
        (ap("mul", Const(-0.5), A), "(-0.5) * a"),
        (ap("exp", ap("neg", A)), "exp(-a)"),
        (ap("select", ap("gt", A, Const(0.0)), B, C), "select(a > 0, b, c)"),
        (
            ap("and", ap("not", ap("lt", A, B)), ap("or", ap("eq", A, B), ap("ne", B, C))),
            "not a < b and (a == b or b != c)",
        ),
        (ap("mod", Position(), Const(3)), "t % 3"),
        (ap("mul", A, Size(K * 2 + 1)), "a * (2*K + 1)"),
        (ap("eq", IndexValue(Index.of(i)), IndexValue(Index.of(j))), "i == j"),
        (ap("add", Const(1e-6), A), "1e-06 + a"),
        (ap("sub", Const(1.0), ap("square", A)), "1 - square(a)"),
    ],
)
def test_scalars(expression: Scalar, text: str) -> None:
    assert scalar_text(expression) == text


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (Index.of(i), "i"),
        (Index.of(3), "3"),
        (Index.of(K), "K"),
        (Index(Index.of(i).terms, K), "K + i"),
        (Index(Index.of(i).terms, Dim.of(-1)), "i - 1"),
        (Index(Index.of(i).terms, Dim.of(-1), K), "(i - 1) mod K"),
        (Index(Index.of(i).terms, Dim.of(0), K + K), "i mod 2*K"),
        (Index(((K, i), (Dim.of(1), j))), "K*i + j"),
        (Index(((K + 1, i), (Dim.of(2), j)), Dim.of(1)), "1 + (K + 1)*i + 2*j"),
        (Index(((Dim.of(-1), i),), K - 1), "K - 1 - i"),
    ],
)
def test_indices(entry: Index, text: str) -> None:
    assert index_text(entry) == text


def test_sums_enclose_what_they_sum() -> None:
    total = ap("add", at("a", i), at("b", i, j))
    summed = Statement("s", (), total, (i, j), "sum")
    assert statement_text(summed) == "s = sum_ij (a[i] + b[i, j])"
    top = Statement("m", index(j), at("b", i, j), (i,), "max")
    assert statement_text(top) == "m[j] = max_i b[i, j]"
    added = Statement("d_a", index(i), at("b", i, j), (j,), "sum", accumulate=True)
    assert statement_text(added) == "d_a[i] += sum_j b[i, j]"


def test_dump_of_a_step() -> None:
    assert dump(STEPS["delta"]) == (
        "step delta\n"
        "  inputs:  q[K], k[K], v[V], beta\n"
        "  states:  W[V, K]\n"
        "  locals:  p[V], W_1[V, K], y[V]\n"
        "\n"
        "  p[i]      = sum_j W[i, j] * k[j]\n"
        "  W_1[i, j] = W[i, j] + beta * ((v[i] - p[i]) * k[j])\n"
        "  y[i]      = sum_j W_1[i, j] * q[j]\n"
        "\n"
        "  next W = W_1\n"
        "  output y\n"
    )
    assert "  dims:    F = 2*K\n" in dump(STEPS["dpfp"])
