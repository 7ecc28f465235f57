"""The equations that a report prints are right: its gradients are those of its own forward."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from fwgen.commands.report import report_text
from fwgen.driver import Compilation, compile_rule
from fwgen.ir.nodes import Array
from fwgen.language import list_rules, load_rule
from report.printed import FUNCTIONS, Frozen, Page, Values, paragraphs

ALWAYS = {"cosformer", "delta", "delta_delta", "delta_product", "deltanet", "fwm", "gla", "mlstm"}
ALWAYS |= {"delta_rnn", "longhorn", "oja", "performer", "rwkv7", "srwm"}
RULES = [
    name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in list_rules()
]


@cache
def compiled(name: str) -> Compilation:
    return compile_rule(load_rule(name), targets=())


def sizes_of(made: Compilation) -> dict[str, int]:
    names = {name for a in made.step.arrays for dim in a.dims for name in dim.names}
    return {name: {"K": 3, "V": 2, "D": 3, "R": 2}.get(name, 2) for name in sorted(names)}


def blank(arrays: tuple[Array, ...], sizes: dict[str, int]) -> Values:
    return {a.name: np.zeros(tuple(d.evaluate(sizes) for d in a.dims)) for a in arrays}


@pytest.mark.parametrize("name", RULES)
def test_printed_gradients_are_derivatives_of_the_printed_forward(name: str) -> None:
    made = compiled(name)
    text, sizes, t = report_text(made), sizes_of(made), 3
    rng = np.random.default_rng(1)
    backward = made.backward
    (forward_lines,) = paragraphs(text, "Forward")
    *value_lines, gradient_lines = paragraphs(text, "Backward")
    forward = Page(forward_lines, sizes, t)
    rest = Page([line for block in value_lines for line in block] + gradient_lines, sizes, t)

    given = [a for a in made.step.arrays if a.role != "local"]
    values = blank((*made.step.arrays, *backward.forward.arrays, *backward.arrays), sizes)
    for array in given:
        drawn = rng.standard_normal(values[array.name].shape)
        values[array.name] = drawn if array.floating else (drawn > 0).astype(float)
    frozen: Frozen = {}
    forward.run(values, frozen)
    weights = {name: rng.standard_normal(values[name].shape) for name, _ in backward.seeds}
    for name, seed in backward.seeds:
        values[seed] = weights[name].copy()
    rest.run(values, frozen, record=False)

    def loss(moved: Values) -> float:
        scratch = blank(made.step.arrays, sizes) | {n: moved[n] for n in (a.name for a in given)}
        forward.run(scratch, frozen, record=False)
        return sum(float((w * scratch[n]).sum()) for n, w in weights.items())

    start = {a.name: values[a.name] for a in given}
    for wanted, adjoint in backward.results:
        along = rng.standard_normal(values[wanted].shape)
        h = 1e-4
        steps = [loss({**start, wanted: start[wanted] + n * h * along}) for n in (1, -1, 2, -2)]
        slope = (8 * (steps[0] - steps[1]) - (steps[2] - steps[3])) / (12 * h)
        parts = np.zeros(1) if adjoint is None else values[adjoint] * along
        size = max(1.0, abs(slope), float(np.abs(parts).sum()))
        assert abs(parts.sum() - slope) <= 1e-7 * size, f"{wanted}: {parts.sum()} against {slope}"


@pytest.mark.parametrize("name", RULES)
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


@pytest.mark.parametrize("name", RULES)
def test_no_index_is_called_like_an_array(name: str) -> None:
    made = compiled(name)
    arrays = {a.name for a in (*made.step.arrays, *made.backward.arrays)}
    for section in ("Forward", "Backward"):
        for block in paragraphs(report_text(made), section):
            for equation in Page(block, {}).equations:
                assert not equation.letters & arrays, equation.target


def test_a_wrong_line_is_found() -> None:
    """The reading of a page is no rubber stamp: a changed sign changes its result."""
    values = {"a": np.array([1.0, 2.0]), "b": np.zeros(()), "d": np.zeros(2)}
    Page(["b = sum_i a[i] * a[i]", "d[i] = a[(i - 1) mod 2] - b", "d[0] += 1"], {}).run(values)
    assert values["b"] == 5 and values["d"].tolist() == [-2.0, -4.0]
    Page(["d[i] = select(a[i] > 1, log(a[i] - 1), 0) + max_i a[i] (i < n)"], {"n": 1}).run(values)
    assert values["d"].tolist() == [1.0, -4.0]
