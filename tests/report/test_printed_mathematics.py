"""The equations that a report prints are right: its gradients are those of its own forward."""

from __future__ import annotations

import re
import warnings
from functools import cache
from pathlib import Path

import pytest

from fwgen.commands.explain import _stage
from fwgen.commands.report import report_text
from fwgen.driver import Compilation, compile_rule
from fwgen.language import list_rules, load_rule
from report.differences import errors
from report.printed import FUNCTIONS, Page, numbers, paragraphs


@cache
def compiled(name: str) -> Compilation:
    return compile_rule(load_rule(name), targets=())


def sizes_of(made: Compilation) -> dict[str, int]:
    names = {name for a in made.step.arrays for dim in a.dims for name in dim.names}
    return {name: {"K": 3, "V": 2, "D": 3, "R": 2}.get(name, 2) for name in sorted(names)}


@pytest.mark.parametrize("name", list_rules())
def test_printed_gradients_are_derivatives_of_the_printed_forward(name: str) -> None:
    """At every point: the differences are exact enough that no seed needs to be chosen."""
    made = compiled(name)
    for seed in range(2):
        for wanted, error in errors(made, sizes_of(made), seed).items():
            assert error <= 1e-20, f"{wanted}: {error}"


# A stopped value stands in a gradient that no line of the forward has in this form; single elements
# of a state are read, beside the gradient that the state has from later tokens.
@pytest.mark.parametrize(
    ("update", "output"),
    [
        ("W = W @ diag(stop_gradient(phi(k)) + phi(k))", "W @ q"),
        ("W = stop_gradient(g) * W + outer(v, stop_gradient(phi(k)) * stop_gradient(k))", "W @ q"),
        ("W = stop_gradient(W) * W + outer(v - stop_gradient(W @ k), k)", "W @ q"),
        ("h = v", "h[0] * phi(k)"),
        ("h = g * h + v", "concat(h[1] * k, h[0] * q)"),
        ("h = h[0] * v", "h[0] * h"),
        ("W = g * W + outer(v, k)", "concat(W[0] * q, W[0, 1] * W[1])"),
    ],
)
def test_single_elements_and_stopped_gradients(update: str, output: str, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    state = {"W": "W: [V, K]", "h": "h: [V]"}[update[0]]
    path.write_text(
        f"name: small\ninputs: {{q: K, k: K, v: V, g: scalar}}\nstate: {{{state}}}\n"
        f"feature_map:\n  phi(x): x + square(x)\nupdate: |\n  {update}\noutput: {output}\n",
        encoding="utf-8",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = compile_rule(load_rule(path), targets=())
    for seed in range(2):
        for wanted, error in errors(made, sizes_of(made), seed).items():
            assert error <= 1e-20, f"{wanted}: {error}"


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
def test_the_stage_backward_uses_nothing_that_is_not_shown(name: str) -> None:
    """What it reads stands in the stage `step` or above it."""
    made, known = compiled(name), {*FUNCTIONS, "select", "stop_gradient", "t", "and", "or", "not"}
    known |= {a.name for a in made.step.arrays} | {seed for _, seed in made.backward.seeds}
    known |= {n for a in made.step.arrays for dim in a.dims for n in dim.names} | {"mod"}
    lines = [
        re.sub(r"  +", " ", x.strip()) for x in _stage("backward", load_rule(name)).split("\n")
    ]
    equations = Page([x for x in lines if re.match(r"\w+(\[.*?\])? \+?= ", x)], {}).equations
    assert len(equations) >= len(made.backward.statements)
    for equation in equations:
        assert not equation.names - equation.letters - known, equation.target
        known.add(equation.target)


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


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled("deltanet")
    text = report_text(made)
    assert all(error <= 1e-20 for error in errors(made, sizes_of(made), 0).values())
    for old, new in (("(v[i] - p[i])", "(v[i] + p[i])"), ("d_beta = ", "d_beta = d_beta - ")):
        assert old in text
        wrong = text.replace(old, new, 1)
        monkeypatch.setattr("report.differences.report_text", lambda made, wrong=wrong: wrong)
        assert max(errors(made, sizes_of(made), 0).values()) > 0.01
