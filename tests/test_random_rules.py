"""Rules drawn at random: the product against the second evaluator, forward and gradients."""

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings

import by_interpreter
import fwgen
import problems
import random_rules

T = TypeVar("T")
FEW = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
MANY = settings(FEW, max_examples=150, derandomize=False)
LARGEST = 1e4  # beyond, a rule that squares its state tells nothing about a compiler


def written(rule: random_rules.RandomRule, use: Callable[[str], T]) -> T:
    """What `use` makes of a file that holds the rule."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unused inputs are no fault of a drawn rule
        path = Path(folder, "random_rule.yaml")
        path.write_text(rule.text, "utf-8")
        return use(str(path))


def check(rule: random_rules.RandomRule, backend: str) -> None:
    w = rule.witness()
    p = problems.draw(w, 4, B=1, H=1 if backend == "interpreter" else 2)
    want = problems.collect(p, lambda q: problems.run_witness(w, q))
    assume(all(bool((t.abs() < LARGEST).all()) for t in want.values()))
    eager = problems.collect(p.to(torch.float32), lambda q: problems.run_witness(w, q))
    if backend == "interpreter":
        got = written(rule, lambda path: by_interpreter.collect(path, p, w.sizes()))
    else:
        op = written(rule, fwgen.compile)
        got = problems.collect(p, lambda q: problems.run_op(op, q, backend=backend))
    problems.compare(got, want, eager, torch.float64)


@given(random_rules.rules())
@settings(FEW, max_examples=30)
def test_derived_backward_of_a_random_rule(rule):
    check(rule, "interpreter")


@given(random_rules.rules())
@FEW
def test_reference_of_a_random_rule(rule):
    check(rule, "reference")


@given(random_rules.rules())
@FEW
def test_cpu_kernels_of_a_random_rule(rule):
    check(rule, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["interpreter", "reference", "cpu"])
@given(rule=random_rules.rules())
@MANY
def test_many_random_rules(backend, rule):
    check(rule, backend)


@given(random_rules.rules())
@settings(FEW, max_examples=60)
def test_the_evaluator_reads_every_drawn_rule(rule):
    """The grammar draws legal rules only, and most of them stay small."""
    w = rule.witness()
    y, _ = problems.run_witness(w, problems.draw(w, 2, B=1, H=1))
    assert list(y.shape) == [1, 2, 1, *w.shape(w.output)]
