"""Every kind of illegal step is refused, and the message shows the statement and the stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fwgen.algebra.backward import differentiate
from fwgen.errors import InternalError
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Array, Const, Index, Statement, Step, Var
from fwgen.ir.verify import adjacent, disjoint, never_negative, verify
from steps import STEPS, K, V, ap, at, i, index, j

DELTA = STEPS["delta"]
P, WRITE, READ = DELTA.statements


def _with(*statements: Statement) -> Step:
    return replace(DELTA, statements=statements)


@pytest.mark.parametrize("name", sorted(STEPS))
def test_legal_steps_pass(name: str) -> None:
    verify(STEPS[name], "lower")
    verify(differentiate(STEPS[name]), "backward")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (_with(WRITE, P, READ), "p is read before it is written"),
        (_with(P, WRITE, WRITE, READ), "a region is assigned twice"),
        (_with(P, replace(WRITE, target="X"), READ), "X is not declared"),
        (_with(P, replace(WRITE, target="W"), READ), "state W is assigned"),
        (_with(P, replace(WRITE, body=at("Z", i)), READ), "Z is not declared"),
        (_with(P, replace(WRITE, body=at("W", i)), READ), "rank of W"),
        (_with(P, replace(WRITE, index=index(i)), READ), "rank of the target"),
        (_with(P, replace(WRITE, body=at("W", i, Var("l", K))), READ), "variable l is not bound"),
        (_with(P, replace(WRITE, index=index(i, i)), READ), "variable i occurs twice"),
        (_with(P, replace(WRITE, accumulate=True), READ), "accumulate does not fit"),
        (_with(replace(P, reduce=None), WRITE, READ), "reduce without over"),
        (_with(replace(P, over=()), WRITE, READ), "reduce without over"),
        (_with(P, replace(WRITE, body=ap("sinh", at("W", i, j))), READ), "sinh does not exist"),
        (_with(P, replace(WRITE, body=ap("exp", at("beta"), at("beta"))), READ), "2 arguments"),
        (_with(P, replace(WRITE, body=ap("gt", at("beta"), Const(0.0))), READ), "condition"),
        (
            _with(P, replace(WRITE, body=ap("select", at("beta"), at("beta"), Const(0.0))), READ),
            "condition and number",
        ),
        (
            _with(P, replace(WRITE, index=(Index(Index.of(i).terms, V), Index.of(j))), READ),
            "out of bounds",
        ),
        (
            _with(
                P, replace(WRITE, index=(Index(Index.of(i).terms, Dim.of(-1)), Index.of(j))), READ
            ),
            "is negative",
        ),
        (_with(P, WRITE), "y has V elements, 0 are written"),
        (replace(DELTA, output="z"), "output z is not declared"),
        (replace(DELTA, states=()), "states and state arrays differ"),
        (replace(DELTA, states=(replace(DELTA.states[0], new="p"),)), "changes its shape"),
        (replace(DELTA, arrays=(*DELTA.arrays, Array("q", (), "input"))), "declared twice"),
    ],
)
def test_illegal_steps_are_refused(step: Step, message: str) -> None:
    with pytest.raises(InternalError, match="lower") as caught:
        verify(step, "lower")
    assert message in str(caught.value)


def test_dims_that_may_be_equal_are_left_to_the_call() -> None:
    verify(_with(P, replace(WRITE, body=at("W", j, i)), READ), "lower")


def test_the_statement_is_shown() -> None:
    with pytest.raises(InternalError) as caught:
        verify(_with(WRITE, P, READ), "lower")
    assert "W_1[i, j] = W[i, j] + beta * ((v[i] - p[i]) * k[j])" in str(caught.value)
    assert "(line 1)" in str(caught.value)


def test_backwards_are_checked() -> None:
    backward = differentiate(DELTA)
    with pytest.raises(InternalError, match="seeds are incomplete"):
        verify(replace(backward, seeds=backward.seeds[1:]), "backward")
    with pytest.raises(InternalError, match="results differ"):
        verify(replace(backward, results=backward.results[1:]), "backward")
    first, *rest = backward.statements
    with pytest.raises(InternalError, match="accumulate"):
        verify(replace(backward, statements=(replace(first, accumulate=False), *rest)), "backward")
    with pytest.raises(InternalError, match="not an adjoint"):
        verify(replace(backward, statements=(replace(first, target="W_1"), *rest)), "backward")


def test_sizes_are_at_least_one() -> None:
    assert never_negative(K - 1)
    assert never_negative(K * 2 - V * 0 - 2)
    assert not never_negative(K - 2)
    assert not never_negative(K - V)
    assert never_negative(K * V - V)


def test_regions() -> None:
    first, second = index(j), (Index(Index.of(j).terms, K),)
    assert disjoint(first, second)
    assert disjoint(second, first)
    assert not disjoint(first, first)
    assert not disjoint(first, (Index(Index.of(j).terms, Dim.of(1)),))
    assert disjoint(index(0, j), index(1, j))


def test_regions_in_a_row() -> None:
    """Pieces whose order alone keeps them apart: 2 elements, K - 2 and one more."""
    middle = Var("m", K - 2)
    row = [index(Var("l", Dim.of(2))), (Index(Index.of(middle).terms, Dim.of(2)),), (Index.of(K),)]
    assert adjacent(row[0], row[1]) == adjacent(row[1], row[2]) == {0}
    assert not disjoint(row[0], row[2])  # K may be 1, for all that this pair says
    assert not adjacent(row[0], row[2]) and not adjacent(row[1], row[0])
    assert not adjacent(row[0], (Index(Index.of(middle).terms, Dim.of(1)),))
    verify(_pieces(row), "step")
    for wrong in ([*row, row[2]], [*row, row[0]], [row[0], *row]):
        with pytest.raises(InternalError, match="assigned twice"):
            verify(_pieces(wrong), "step")


def _pieces(regions: list[tuple[Index, ...]]) -> Step:
    """A step that writes ones to these regions of an output of size K + 1."""
    y = Array("y", (K + 1,), "local")
    statements = tuple(Statement("y", region, Const(1)) for region in regions)
    return Step("pieces", (y,), statements, (), "y", (), ())
