"""Every entry of the derivative table: against sympy, at kinks and ties, and under masks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy

from fwgen.algebra.backward import differentiate
from fwgen.algebra.derivatives import TABLE, partials
from fwgen.algebra.freeze import Atoms, thaw
from fwgen.algebra.hoist import hoist
from fwgen.algebra.products import build_product
from fwgen.ir.dims import Dim
from fwgen.ir.interpret import run_backward
from fwgen.ir.nodes import Apply, Array, Const, Load, Scalar, State, Statement, Step, Var
from fwgen.ir.ops import OPS
from fwgen.ir.verify import verify
from steps import ap, at, index

X, Y, Z = Load("x"), Load("y"), Load("z")
SMOOTH = sorted(
    op for op, row in OPS.items() if row.kind != "bool" and op not in ("mod", "stop_gradient")
)
POINTS = [
    {X: sympy.Rational(x), Y: sympy.Rational(y), Z: sympy.Rational(z)}
    for x, y, z in [("3/7", "5/9", "4/3"), ("9/5", "2/7", "11/8"), ("1/3", "-3/4", "1/5")]
]


def _application(op: str) -> Apply:
    arity = OPS[op].arity or 3
    if op == "select":
        return ap("select", ap("gt", Z, Const(0.0)), X, Y)
    return Apply(op, (X, Y, Z)[:arity])


def test_every_operation_has_an_entry() -> None:
    assert set(TABLE) == set(OPS)


@pytest.mark.parametrize("op", SMOOTH)
@pytest.mark.parametrize("stored", [False, True])
def test_entry_is_the_derivative(op: str, stored: bool) -> None:
    """At rational points to 30 digits, the forward value recomputed or taken from its array."""
    node, atoms, result = _application(op), Atoms(), Load("out")
    whole = thaw(node, atoms)
    for point in POINTS:
        values = {atoms.symbol(load): value for load, value in point.items()}
        if op in ("log", "sqrt", "rsqrt", "pow") and not point[X] > 0:
            continue
        out = whole.subs(values)
        for argument, partial in zip(
            node.args, partials(node, result if stored else None), strict=True
        ):
            if not isinstance(argument, Load):
                continue
            want = sympy.diff(whole, atoms.symbol(argument)).subs(values)
            got = sympy.Integer(0)
            if partial is not None:
                got = thaw(build_product(partial.factor), atoms)
                got = got.subs({**values, atoms.symbol(result): out})
                if partial.condition is not None:
                    holds = thaw(partial.condition, atoms).subs(values)
                    got = got if holds == sympy.true else sympy.Integer(0)
            # The constants of gelu and erf are doubles, everything else is exact.
            digits = 15 if op in ("gelu", "erf") else 29
            assert abs(sympy.N(want - got, 40)) < 10.0**-digits, (op, argument, point)


def _gradients(body: Scalar, **values: float) -> dict[str, float]:
    """d body / d input at a point, through hoisting, the backward pass and the interpreter."""
    arrays = tuple(Array(name, (), "input") for name in values)
    local = (Array("S", (), "state"), Array("S_1", (), "local"), Array("out", (), "local"))
    statements = (Statement("S_1", (), Load("S")), Statement("out", (), body))
    step = Step("point", (*arrays, *local), statements, (State("S", "S", "S_1"),), "out")
    verify(step, "step")
    backward = differentiate(hoist(step))
    verify(backward, "backward")
    inputs = {name: np.array([value]) for name, value in values.items()}
    found = run_backward(backward, inputs, {}, {}, {}, np.ones(1))
    return {name: float(found[name][0]) for name in values}


@pytest.mark.parametrize(
    ("body", "point", "want"),
    [
        (ap("relu", X), {"x": 0.0}, {"x": 0.0}),
        (ap("abs", X), {"x": 0.0}, {"x": 0.0}),
        (ap("sign", X), {"x": 0.0}, {"x": 0.0}),
        (ap("elu", X), {"x": 0.0}, {"x": 1.0}),
        (ap("maximum", X, Y), {"x": 2.0, "y": 2.0}, {"x": 0.5, "y": 0.5}),
        (ap("minimum", X, Y), {"x": 2.0, "y": 2.0}, {"x": 0.5, "y": 0.5}),
        (ap("maximum", X, Y), {"x": 2.0, "y": 3.0}, {"x": 0.0, "y": 1.0}),
        (ap("clamp", X, Const(-1.0), Const(1.0)), {"x": 1.0}, {"x": 1.0}),
        (ap("clamp", X, Const(-1.0), Const(1.0)), {"x": -1.0}, {"x": 1.0}),
        (ap("clamp", X, Const(-1.0), Const(1.0)), {"x": 1.5}, {"x": 0.0}),
        (ap("clamp", X, Y, Z), {"x": 0.0, "y": 1.0, "z": 2.0}, {"x": 0.0, "y": 1.0, "z": 0.0}),
        (ap("mul", X, ap("stop_gradient", X)), {"x": 3.0}, {"x": 3.0}),
        (ap("pow", X, Const(2)), {"x": -3.0}, {"x": -6.0}),
        (ap("pow", X, Const(3)), {"x": 0.0}, {"x": 0.0}),
        (ap("pow", X, Const(-2)), {"x": 2.0}, {"x": -0.25}),
        (ap("pow", X, Const(0)), {"x": 0.0}, {"x": 0.0}),
        (ap("pow", X, Const(1)), {"x": 0.0}, {"x": 1.0}),
        (ap("pow", X, Y), {"x": 0.0, "y": 2.0}, {"x": 0.0, "y": 0.0}),
        (ap("mod", X, Y), {"x": 7.5, "y": 2.0}, {"x": 1.0, "y": -3.0}),
    ],
)
def test_kinks_and_ties(body: Scalar, point: dict[str, float], want: dict[str, float]) -> None:
    assert _gradients(body, **point) == pytest.approx(want, abs=1e-15)


@pytest.mark.parametrize("value", [0.0, -1.0])
@pytest.mark.parametrize("op", ["log", "rsqrt", "sqrt"])
def test_untaken_branch_has_no_gradient_even_where_it_is_not_finite(op: str, value: float) -> None:
    guarded = ap("select", ap("gt", X, Const(0.0)), ap("mul", Y, ap(op, X)), X)
    found = _gradients(guarded, x=value, y=2.0)
    assert found == {"x": 1.0, "y": 0.0}
    taken = _gradients(guarded, x=4.0, y=2.0)
    slopes = {"log": 0.5, "rsqrt": -0.125, "sqrt": 0.5}
    assert taken["x"] == pytest.approx(slopes[op])


def test_masks_nest() -> None:
    inner = ap("select", ap("gt", Y, Const(0.0)), ap("log", Y), Const(3.0))
    outer = ap("select", ap("gt", X, Const(0.0)), ap("div", inner, X), Const(1.0))
    assert _gradients(outer, x=0.0, y=0.0) == {"x": 0.0, "y": 0.0}
    assert _gradients(outer, x=2.0, y=0.0) == pytest.approx({"x": -0.75, "y": 0.0})
    assert _gradients(outer, x=2.0, y=4.0) == pytest.approx({"x": -math.log(4) / 4, "y": 0.125})


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_equal_extrema_share(reduce: str) -> None:
    n = Var("i", Dim.of("K"))
    arrays = (
        Array("x", (Dim.of("K"),), "input"),
        Array("S", (), "state"),
        Array("S_1", (), "local"),
        Array("m", (), "local"),
    )
    body = ap("mul", Const(2.0), at("x", n))
    statements = (
        Statement("S_1", (), Load("S")),
        Statement("m", index(), body, (n,), reduce),  # type: ignore[arg-type]
    )
    step = Step("extremum", arrays, statements, (State("S", "S", "S_1"),), "m")
    backward = differentiate(hoist(step))
    verify(backward, "backward")
    sign = 1.0 if reduce == "max" else -1.0
    x = sign * np.array([[1.0, 4.0, 4.0, 0.0, 4.0]])
    found = run_backward(backward, {"x": x}, {}, {}, {"K": 5}, np.array([3.0]))
    np.testing.assert_allclose(found["x"], [[0, 2, 2, 0, 2]])


def test_norm_at_zero_has_no_gradient() -> None:
    square = ap("square", X)
    positive = ap("gt", square, Const(0.0))
    norm = ap("select", positive, ap("sqrt", square), Const(0.0))
    assert _gradients(norm, x=0.0) == {"x": 0.0}
    assert _gradients(norm, x=-3.0) == pytest.approx({"x": -1.0})
