"""The interpreter against plain numpy, statement by statement and over sequences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fwgen.ir.dims import Dim
from fwgen.ir.interpret import FUNCTIONS, run, run_statement, run_step
from fwgen.ir.nodes import (
    Const,
    Index,
    IndexValue,
    Load,
    Position,
    Scalar,
    Size,
    Statement,
    Var,
)
from fwgen.ir.ops import OPS
from sequences import draw
from steps import STEPS, ap, at, index

K, V = Dim.of("K"), Dim.of("V")
i, j = Var("i", V), Var("j", K)
SIZES = {"K": 3, "V": 2}


def _filled(target: np.ndarray, statement: Statement, t: int = 0, **values: object) -> np.ndarray:
    arrays = {name: np.asarray(value) for name, value in values.items()}
    arrays[statement.target] = target
    run_statement(statement, arrays, SIZES, t)
    return arrays[statement.target]


def test_every_operation_is_there() -> None:
    assert set(FUNCTIONS) | {"add", "mul"} == set(OPS)


def test_sums_and_extrema() -> None:
    w, k = np.arange(6.0).reshape(2, 3), np.array([1.0, -2.0, 0.5])
    product = ap("mul", at("w", i, j), at("k", j))
    summed = Statement("p", index(i), product, (j,), "sum")
    np.testing.assert_array_equal(_filled(np.zeros(2), summed, w=w, k=k), w @ k)
    top = Statement("m", (), product, (i, j), "max")
    assert _filled(np.zeros(()), top, w=w, k=k) == (w * k).max()
    low = Statement("m", index(j), product, (i,), "min")
    np.testing.assert_array_equal(_filled(np.zeros(3), low, w=w, k=k), (w * k).min(0))


def test_a_sum_of_what_does_not_vary_counts() -> None:
    counted = Statement("s", index(i), at("c"), (j,), "sum")
    np.testing.assert_array_equal(_filled(np.zeros(2), counted, c=2.0), [6.0, 6.0])


def test_indices_invert() -> None:
    x = np.array([1.0, 2.0, 3.0])
    rolled = Index(Index.of(j).terms, Dim.of(-1), K)
    gathered = _filled(np.zeros(3), Statement("r", index(j), at("x", rolled)), x=x)
    np.testing.assert_array_equal(gathered, np.roll(x, 1))
    back = Statement("r", (rolled,), at("x", j), accumulate=True)
    np.testing.assert_array_equal(_filled(np.ones(3), back, x=x), 1 + np.roll(x, -1))
    flat = Statement("f", (Index(((K, i), (Dim.of(1), j))),), ap("mul", at("a", i), at("x", j)))
    a = np.array([1.0, 10.0])
    np.testing.assert_array_equal(_filled(np.zeros(6), flat, x=x, a=a), np.outer(a, x).ravel())


def test_accumulating_into_one_element_adds_all() -> None:
    same = Statement("s", (Index.of(1),), at("x", j), (j,), "sum", accumulate=True)
    np.testing.assert_array_equal(_filled(np.zeros(2), same, x=np.ones(3)), [0.0, 3.0])


def test_negative_places_are_refused() -> None:
    before = Index(Index.of(j).terms, Dim.of(-1))
    with pytest.raises(IndexError):
        _filled(np.zeros(3), Statement("r", index(j), at("x", before)), x=np.ones(3))


@pytest.mark.parametrize(
    ("body", "want"),
    [
        (ap("mod", ap("add", Position(), Const(1)), Const(3)), 2.0),
        (ap("mul", Size(K * 2 + 1), Const(0.5)), 3.5),
        (
            ap(
                "select",
                ap("and", ap("gt", Load("x"), Const(0)), ap("not", ap("eq", Load("x"), Const(2)))),
                Const(1),
                Const(0),
            ),
            1.0,
        ),
        (ap("select", ap("lt", Load("x"), Const(0)), ap("log", Const(-1.0)), Load("x")), 0.5),
        (ap("pow", Const(2), Const(-1)), 0.5),
        (ap("div", Const(1), Const(2)), 0.5),
        (ap("clamp", Load("x"), Const(0.75), Const(1.0)), 0.75),
        (ap("gelu", Load("x")), 0.25 * (1 + math.erf(0.5 / math.sqrt(2)))),
        (ap("elu", Const(-1000.0)), -1.0),
        (ap("softplus", Const(-800.0)), 0.0),
        (ap("softplus", Const(800.0)), 800.0),
        (ap("logsigmoid", Const(-800.0)), -800.0),
        (ap("sigmoid", Const(-800.0)), 0.0),
        (ap("rsqrt", Const(4.0)), 0.5),
    ],
)
def test_scalars(body: Scalar, want: float) -> None:
    assert _filled(np.zeros(()), Statement("s", (), body), t=4, x=0.5) == pytest.approx(want)


def test_identity_compares_indices() -> None:
    square = Var("l", V)
    same = ap("eq", IndexValue(Index.of(i)), IndexValue(Index.of(square)))
    eye = Statement("e", index(i, square), ap("select", same, Const(1.0), Const(0.0)))
    np.testing.assert_array_equal(_filled(np.zeros((2, 2)), eye), np.eye(2))


def test_the_delta_rule_is_the_delta_rule() -> None:
    problem = draw(STEPS["delta"], SIZES, 5, seed=0)
    w, ys = problem.states["W"], []
    for q, k, v, beta in zip(*(problem.inputs[n] for n in ("q", "k", "v", "beta")), strict=True):
        w = w + beta * np.outer(v - w @ k, k)
        ys.append(w @ q)
    y, final = run(STEPS["delta"], problem.inputs, {}, problem.states, SIZES)
    np.testing.assert_allclose(y, ys, rtol=1e-12)
    np.testing.assert_allclose(final["W"], w, rtol=1e-12)


def test_start_values() -> None:
    problem = draw(STEPS["tanh_state"], SIZES, 1, seed=0)
    values = {name: x[0] for name, x in problem.inputs.items()}
    values["W"] = np.full((2, 3), 0.25)
    token = run_step(STEPS["tanh_state"], values, SIZES)
    _, final = run(STEPS["tanh_state"], problem.inputs, {}, {}, SIZES)
    np.testing.assert_array_equal(final["W"], token["W_1"])
    problem = draw(STEPS["diagonal"], SIZES, 1, seed=0)
    learned = {"W": np.full((2, 3), 7.0)}
    _, from_param = run(STEPS["diagonal"], problem.inputs, learned, {}, SIZES)
    _, given = run(STEPS["diagonal"], problem.inputs, {}, learned, SIZES)
    np.testing.assert_array_equal(from_param["W"], given["W"])


def test_no_tokens_change_nothing() -> None:
    problem = draw(STEPS["delta"], SIZES, 0, seed=0)
    y, final = run(STEPS["delta"], problem.inputs, {}, problem.states, SIZES)
    assert y.shape == (0, 2)
    np.testing.assert_array_equal(final["W"], problem.states["W"])
