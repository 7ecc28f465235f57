"""Reports of rules drawn at random: every format is made, and what it says of them is true."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import random_rules
from fwgen.commands import report
from fwgen.commands.report.bounds import Bounds
from fwgen.commands.report.motion import motion
from fwgen.driver import compile_rule
from fwgen.emit.signature import room
from fwgen.ir.interpret import run_step
from fwgen.ir.nodes import Step
from fwgen.language import load_rule
from report.differences import CONSTANTS, errors
from report.linked import moved
from report.printed import FUNCTIONS, Page, paragraphs
from sequences import draw

FEW = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, max_examples=200, derandomize=False)
SIZES = [{"K": 4, "V": 3, "F": size} for size in (5, 4, 3, 2)]
"""The first that a rule has room for is taken: `phi(k)[1:F]` asks for F <= K."""


def check(rule: random_rules.RandomRule, path: Path) -> None:
    path.write_text(rule.text, "utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = compile_rule(load_rule(path), targets=())
    text = report.report_text(made)
    found = json.loads(json.dumps(report.report_json(made)))
    assert found["latex"] == report.report_latex(made)
    assert report.report_markdown(made, "fwgen compile random_rule").count("```") % 2 == 0
    known = {a.name for a in made.step.arrays if a.role != "local"} | {"K", "V", "F", "t"}
    known |= {*FUNCTIONS, "select", "stop_gradient", "and", "or", "not", "mod"}
    known |= {seed for _, seed in made.backward.seeds}
    for section in ("Forward", "Backward"):
        for block in paragraphs(text, section):
            for equation in Page(block, {}).equations:
                assert equation.names - equation.letters <= known, equation.target
                known.add(equation.target)
    sizes = next(s for s in SIZES if all(dim.evaluate(s) >= 0 for dim in room(made.step)))
    for seed in range(2):
        for wanted, error in errors(made, sizes, seed, CONSTANTS).items():
            assert error <= 1e-15, f"{wanted}: {error}"
    holds(made.step, sizes)


def holds(step: Step, sizes: dict[str, int]) -> None:
    """Links and bounds at drawn values."""
    bounds = Bounds(step)
    positive = {s.old for s in step.states if bounds.array(s.old).low == 0}
    for seed in range(2):
        problem = draw(step, sizes, 1, seed)
        given = {**problem.heads, **{n: x[0] for n, x in problem.inputs.items()}}
        states = {s.old: problem.states[s.name] for s in step.states}
        given |= {old: np.abs(x) if old in positive else x for old, x in states.items()}
        arrays = run_step(step, given, sizes, 3)
        if not all(np.isfinite(x).all() for x in arrays.values()):
            continue
        for array, value in arrays.items():
            slack = 1e-9 * (1 + np.abs(value))
            assert (value >= bounds.array(array).low - slack).all(), array
            assert (value <= bounds.array(array).high + slack).all(), array
        for state in step.states:
            for link in motion(step, state) or ():
                got, wanted = moved(step, link, arrays, sizes), arrays[link.after]
                np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


@FEW
@given(rule=random_rules.rules())
def test_report(rule: random_rules.RandomRule, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(rule, tmp_path_factory.mktemp("rule") / "random_rule.yaml")


@pytest.mark.slow
@MANY
@given(rule=random_rules.rules())
def test_report_of_many(
    rule: random_rules.RandomRule, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check(rule, tmp_path_factory.mktemp("rule") / "random_rule.yaml")
