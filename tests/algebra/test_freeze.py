"""The border to sympy, and the gathering of contributions that crosses it."""

from __future__ import annotations

import pytest
import sympy

from fwgen.algebra.freeze import Atoms, freeze, same, thaw
from fwgen.algebra.gather import gathered
from fwgen.algebra.products import Product, build_product, product_of
from fwgen.errors import InternalError
from fwgen.ir.nodes import Const, Load, Scalar
from fwgen.ir.text import scalar_text
from steps import ap

G, X, Y, M = Load("g"), Load("x"), Load("y"), Load("m")
S = ap("sigmoid", X)


@pytest.mark.parametrize(
    "expression",
    [
        X,
        Const(2.5),
        ap("add", ap("mul", X, Y), Const(1.0)),
        ap("mul", Const(0.1), X, ap("add", Y, M)),
        ap("div", X, ap("add", Y, Const(1.0))),
        ap("square", ap("add", X, Y)),
        ap("exp", ap("neg", ap("mul", X, Y))),
        ap("sqrt", ap("mul", X, X)),
        ap("rsqrt", ap("add", X, Y)),
        ap("pow", X, Y),
        ap("div", Const(1.0), ap("pow", X, Const(3))),
        ap("tanh", ap("sin", ap("log", X))),
    ],
)
def test_there_and_back(expression: Scalar) -> None:
    atoms = Atoms()
    thawed = thaw(expression, atoms)
    again = freeze(thawed, atoms)
    assert sympy.simplify(thaw(again, atoms) - thawed) == 0
    assert freeze(thaw(again, atoms), atoms) == again


def test_constants_keep_all_digits() -> None:
    value = 0.1 + 0.2
    assert freeze(thaw(Const(value), Atoms()), Atoms()) == Const(value)


def test_what_has_no_counterpart_is_a_fault() -> None:
    with pytest.raises(InternalError, match="gamma"):
        freeze(sympy.gamma(Atoms().symbol(X)), Atoms())


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (ap("mul", X, ap("add", Y, M)), ap("add", ap("mul", M, X), ap("mul", X, Y)), True),
        (ap("div", X, Y), ap("mul", X, ap("div", Const(1.0), Y)), True),
        (ap("sub", X, X), Const(0.0), True),
        (ap("mul", S, ap("sub", Const(1.0), S)), ap("sub", S, ap("square", S)), True),
        (ap("sigmoid", X), ap("sigmoid", Y), False),
        (ap("mul", X, Y), ap("add", X, Y), False),
        (ap("div", X, Y), ap("div", Y, X), False),
    ],
)
def test_equality_as_rational_functions(a: Scalar, b: Scalar, equal: bool) -> None:
    assert same(a, b) is equal


@pytest.mark.parametrize(
    ("contributions", "text"),
    [
        ([ap("mul", G, X), ap("mul", X, G)], "2 * g * x"),
        ([ap("mul", G, X), ap("neg", ap("mul", G, X))], "0"),
        ([ap("mul", G, ap("sub", Const(1.0), X)), ap("neg", ap("mul", G, X))], "g * (1 - 2 * x)"),
        ([ap("neg", ap("mul", G, X)), ap("mul", G, Y)], "g * (y - x)"),
        ([ap("div", ap("mul", G, X), M), ap("div", ap("mul", G, Y), M)], "g * (x + y) / m"),
        (
            [ap("mul", G, S), ap("mul", G, X, S, ap("sub", Const(1.0), S))],
            "g * sigmoid(x) * (1 + x * (1 - sigmoid(x)))",
        ),
    ],
)
def test_contributions_become_one_short_expression(contributions: list[Scalar], text: str) -> None:
    products: list[Product] = list(map(product_of, contributions))
    assert scalar_text(build_product(gathered(products))) == text
