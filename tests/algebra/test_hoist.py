"""What hoisting makes of an expression, that it computes the same, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
from written import token

from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.ir.interpret import run, run_backward
from fwgen.ir.nodes import Apply, Const, Load, Step
from fwgen.ir.text import statement_text
from fwgen.ir.verify import verify
from fwgen.ir.walk import scalars, variables
from sequences import assert_gradients, draw

SIZES = {"K": 3, "V": 2}

UPDATES = {
    "decay": "W = exp(g) * W",
    "row": "W = row(exp(-k)) * W + outer(v, k)",
    "col": "W = col(sigmoid(v)) * W - b * outer(x, q)",
    "both": "W = W * outer(sigmoid(v), sigmoid(k)) + outer(v * x, k) * b",
    "two reads": "W = W + outer(v - W @ k, k) + outer(x - W @ q, q)",
    "sum inside": "W = W + outer((W + outer(v, k)) @ q, k)",
    "quotient": "W = W / (1 + norm(W))",
    "wide quotient": "W = W / (1 + abs(W)) + outer(v, k)",
    "negated quotient": "W = -(W / (1 + square(W))) * v[0] / (2 + cos(g))",
    "two wide divisors": "W = outer(v, k) / (1 + abs(W)) / (2 + cos(A)) / col(1 + square(v))",
    "two wide factors": "W = W * A\nA = A * A - W",
    "function": "W = tanh(W + b * outer(v - W @ k, k))",
    "inner function": "W = 0.5 * W + sin(W) * outer(v, k)",
    "kinks": "W = maximum(W, outer(v, k)) + relu(A)",
    "mask": "W = where(g > 0, W, 0) + where(b > 0, outer(v, k), exp(g) * W)",
    "row softmax": "W = softmax(W, axis=1) + outer(v, k)",
    "layernorm": "W = W + outer(layernorm(W @ k), k)\nA = A + outer(W @ q, layernorm(k))",
    "matrices": "W = W @ (A.T @ W) * 0.1 + outer(v, k)",
    "identity": "W = W @ (eye(K) - b * outer(k, k)) + outer(v, k)",
    "mean": "W = W - mean(W) + col(mean(W, axis=1)) * row(k)",
    "scaled sum": "W = W + outer(v, k) * dot(exp(g) * q, k / (1 + b * b))",
    "sign": "W = -outer(v, k) - W",
}


def _texts(step: Step) -> list[str]:
    return [statement_text(s) for s in step.statements]


@pytest.mark.parametrize("name", sorted(UPDATES))
def test_the_token_stays_the_same_and_its_gradients_are_right(name: str) -> None:
    step = token(UPDATES[name], "W @ q + A @ k")
    hoisted = hoist(step)
    verify(hoisted, "hoist")
    assert hoist(hoisted) == hoisted
    problem = draw(step, SIZES, 3, seed=7)
    args = (problem.inputs, problem.heads, problem.states, SIZES)
    (y, final), (y2, final2) = run(step, *args), run(hoisted, *args)
    np.testing.assert_allclose(y2, y, rtol=1e-11, atol=1e-12)
    for state in final:
        np.testing.assert_allclose(final2[state], final[state], rtol=1e-11, atol=1e-12)
    backward = differentiate(hoisted)
    verify(backward, "backward")
    assert_gradients(step, backward, problem, seed=8)


@pytest.mark.parametrize("name", sorted(set(UPDATES) - {"mask"}))
def test_wide_products_hold_one_access_per_set_of_variables(name: str) -> None:
    for statement in hoist(token(UPDATES[name], "W @ q + A @ k")).statements:
        own = {*statement.free, *statement.over}
        products = [n for n in scalars(statement.body) if isinstance(n, Apply) and n.op == "mul"]
        for product in products if len(own) >= 2 else []:
            narrow = [frozenset(variables(f)) for f in product.args]
            narrow = [used for used in narrow if len(used) < len(own)]
            assert len(set(narrow)) == len(narrow), statement_text(statement)
            simple = all(isinstance(f, Load | Const) for f in product.args)
            assert simple, statement_text(statement)


def test_value_side_of_an_update_becomes_one_vector() -> None:
    texts = _texts(hoist(token("W = exp(g) * W\nW = W + sigmoid(b) * outer(v - W @ k, k)")))
    assert texts[:6] == [
        "exp_g = exp(g)",
        "W_1[i, j] = exp_g * W[i, j]",
        "p[i] = sum_j W_1[i, j] * k[j]",
        "sigmoid_b = sigmoid(b)",
        "u[i] = sigmoid_b * (v[i] - p[i])",
        "W_2[i, j] = W_1[i, j] + u[i] * k[j]",
    ]


def test_factors_leave_a_sum_they_do_not_depend_on() -> None:
    texts = _texts(hoist(token("W = W + outer(v, k)", "rsqrt(size(K)) * exp(g) * W @ q")))
    assert sum(text.endswith("[i] = sum_j W_1[i, j] * q[j]") for text in texts) == 1
    assert sum("sum" in text for text in texts) == 1


def test_mean_centering_is_not_pulled_apart() -> None:
    """sum(x - mean) as sum(x) - n * mean would lose its digits."""
    texts = _texts(hoist(token("W = W + outer(v, k)", "x * sum(v - mean(v))")))
    assert any("sum_i (v[i] - " in text for text in texts), texts


def test_equal_definitions_are_made_once() -> None:
    texts = _texts(hoist(token("W = exp(g) * W\nA = exp(g) * A", "sigmoid(g) * (W @ q + A @ q)")))
    assert sum(text.endswith("= exp(g)") for text in texts) == 1
    both = _texts(hoist(token("W = W + outer(W @ k, k) - outer(v * (W @ k), k)")))
    assert sum(text.endswith("sum_j W[i, j] * k[j]") for text in both) == 1


def test_copies_and_dead_values_go() -> None:
    step = hoist(token("kk = k\nunused = exp(v)\nW = W + outer(v, kk)"))
    names = {array.name for array in step.arrays}
    assert not names & {"kk", "unused"}
    assert "W_1[i, j] = W[i, j] + v[i] * k[j]" in _texts(step)


def _slope(step: Step, **inputs: float) -> dict[str, np.ndarray]:
    """Gradients of the sum of y over one token whose inputs are constant."""
    problem = draw(step, SIZES, 1, seed=1)
    given = {n: np.full_like(x, inputs.get(n, 1.0)) for n, x in problem.inputs.items()}
    backward = differentiate(hoist(step))
    return run_backward(backward, given, {}, {}, SIZES, np.ones((1, 2)))  # type: ignore[return-value]


@pytest.mark.parametrize("inside", ["log(g)", "sqrt(g)", "1 / g", "g ** 0.5"])
def test_a_masked_local_is_masked_with_its_derivative(inside: str) -> None:
    written = token("W = W + outer(v, k)", f"x * where(g > 0, {inside}, 3 * g)")
    assigned = token(
        "W = W + outer(v, k)", f"|\n  a = {inside}\n  c = 2 * a\n  x * where(g > 0, 0.5 * c, 3 * g)"
    )
    for step in (written, assigned):
        for g in (0.0, 4.0):
            got = _slope(step, g=g)["g"]
            assert np.isfinite(got).all(), (inside, g)
        np.testing.assert_allclose(_slope(step, g=0.0)["g"], [6.0])
    np.testing.assert_allclose(_slope(assigned, g=4.0)["g"], _slope(written, g=4.0)["g"])


def test_a_reset_to_zero_stops_everything() -> None:
    step = token("W = where(g > 0, 0, 1) * W\nW = W + outer(v, k)")
    problem = draw(step, SIZES, 2, seed=3)
    problem.inputs["g"][:] = [1.0, -1.0]
    backward = differentiate(hoist(step))
    args = (problem.inputs, {}, problem.states, SIZES)
    found = run_backward(backward, *args, problem.dy, problem.dfinal)
    assert np.all(found["state", "W"] == 0)
    assert np.any(found["v"][0] != 0)
