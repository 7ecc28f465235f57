"""The equations that a report prints are right: its gradients are those of its own forward."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from fwgen.commands.report import report_text
from fwgen.driver import Compilation, compile_rule
from fwgen.ir.nodes import Array
from fwgen.language import list_rules, load_rule
from report.printed import FUNCTIONS, Frozen, Number, Page, Values, exact, numbers, paragraphs

FLOOR = 1e-30
"""What roundings may come to, of the loss."""


@cache
def compiled(name: str) -> Compilation:
    return compile_rule(load_rule(name), targets=())


def sizes_of(made: Compilation) -> dict[str, int]:
    names = {name for a in made.step.arrays for dim in a.dims for name in dim.names}
    return {name: {"K": 3, "V": 2, "D": 3, "R": 2}.get(name, 2) for name in sorted(names)}


def blank(arrays: tuple[Array, ...], sizes: dict[str, int]) -> Values:
    return {a.name: numbers(np.zeros([d.evaluate(sizes) for d in a.dims])) for a in arrays}


class Printed:
    """A report's equations at a drawn point: its gradients, and the loss that they are of."""

    def __init__(self, made: Compilation, sizes: dict[str, int], seed: int) -> None:
        self.made, text, t = made, report_text(made), 3
        rng, backward = np.random.default_rng(seed), made.backward
        (forward_lines,) = paragraphs(text, "Forward")
        lines = [line for block in paragraphs(text, "Backward") for line in block]
        self.forward, rest = Page(forward_lines, sizes, t), Page(lines, sizes, t)
        self.blank = blank(made.step.arrays, sizes)
        self.values = blank((*made.step.arrays, *backward.forward.arrays, *backward.arrays), sizes)
        self.given = {}
        for array in made.step.arrays:
            if array.role != "local":
                drawn = rng.standard_normal(self.values[array.name].shape)
                self.given[array.name] = numbers(drawn if array.floating else drawn > 0)
        self.values |= {name: x.copy() for name, x in self.given.items()}
        self.frozen: Frozen = {}
        self.forward.run(self.values, self.frozen)
        shapes = {name: self.values[name].shape for name, _ in backward.seeds}
        self.weights = {name: numbers(rng.standard_normal(s)) for name, s in shapes.items()}
        self.values |= {seed: self.weights[name].copy() for name, seed in backward.seeds}
        rest.run(self.values, self.frozen, record=False)

    def loss(self, moved: Values) -> Number:
        scratch = {n: x.copy() for n, x in self.blank.items()} | self.given | moved
        self.forward.run(scratch, self.frozen, record=False)
        return sum(numbers(w * scratch[n]).sum() for n, w in self.weights.items())

    def slope(self, name: str, along: np.ndarray) -> Number:
        """The derivative of the loss along a direction.

        A central difference is wrong by h^2 of the third derivative, 1e-40 of it, and by roundings
        of 1e-60 / h = 1e-40 of the loss; a kink would have to lie within 1e-20.
        """
        h = exact.mpf(10) ** -20
        there, back = (
            self.loss({name: numbers(self.given[name] + s * h * along)}) for s in (1, -1)
        )
        return (there - back) / (2 * h)


@pytest.mark.parametrize("name", list_rules())
def test_printed_gradients_are_derivatives_of_the_printed_forward(name: str) -> None:
    """At every point: the differences are exact enough that no seed needs to be chosen."""
    made = compiled(name)
    for seed in range(2):
        printed, rng = Printed(made, sizes_of(made), seed), np.random.default_rng(100 + seed)
        for wanted, adjoint in made.backward.results:
            along = numbers(rng.standard_normal(printed.values[wanted].shape))
            slope = printed.slope(wanted, along)
            parts = np.ravel(0 if adjoint is None else printed.values[adjoint] * along)
            size = max(abs(slope), np.abs(parts).sum())
            allowed = 1e-20 * size + FLOOR * abs(printed.loss({}))  # of a gradient that is 0
            assert abs(parts.sum() - slope) <= allowed, f"{wanted}: {parts.sum()} not {slope}"


@pytest.mark.parametrize("name", list_rules())
def test_every_printed_name_is_defined_above_its_use(name: str) -> None:
    """A reader with pencil and paper needs nothing but the page."""
    made = compiled(name)
    text = report_text(made)
    sizes = {n for a in made.step.arrays for dim in a.dims for n in dim.names}
    known = {a.name for a in made.step.arrays if a.role != "local"} | sizes
    known |= {*FUNCTIONS, "select", "stop_gradient", "t", "and", "or", "not", "mod"}
    for section in ("Forward", "Backward"):
        known |= {seed for _, seed in made.backward.seeds} if section == "Backward" else set()
        for block in paragraphs(text, section):
            for equation in Page(block, {}).equations:
                unknown = equation.names - equation.letters - known
                assert not unknown, f"{equation.target}: {unknown}"
                known.add(equation.target)
    assert {adjoint for _, adjoint in made.backward.results if adjoint} <= known


@pytest.mark.parametrize("name", list_rules())
def test_no_index_is_called_like_an_array(name: str) -> None:
    made = compiled(name)
    arrays = {a.name for a in (*made.step.arrays, *made.backward.arrays)}
    for section in ("Forward", "Backward"):
        for block in paragraphs(report_text(made), section):
            for equation in Page(block, {}).equations:
                assert not equation.letters & arrays, equation.target


def test_a_wrong_line_is_found() -> None:
    """The reading of a page is no rubber stamp: a changed sign changes its result."""
    values = {"a": numbers([1.0, 2.0]), "b": numbers(0.0), "d": numbers([0.0, 0.0])}
    Page(["b = sum_i a[i] * a[i]", "d[i] = a[(i - 1) mod 2] - b", "d[0] += 1"], {}).run(values)
    assert values["b"] == 5 and values["d"].tolist() == [-2.0, -4.0]
    Page(["d[i] = select(a[i] > 1, log(a[i] - 1), 0) + max_i a[i] (i < n)"], {"n": 1}).run(values)
    assert values["d"].tolist() == [1.0, -4.0]
