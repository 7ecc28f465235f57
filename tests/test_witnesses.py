"""Every shipped rule and feature map, compiled, against loops written from the mathematics."""

from dataclasses import replace
from importlib import resources

import pytest
import torch

import by_interpreter
import fwgen
import problems
from witnesses import FEATURE_MAPS, WITNESSES, Witness, evaluator
from witnesses.table import Values

RULES = fwgen.list_rules()
MAPS = fwgen.list_feature_maps()
DTYPES = [torch.float32, torch.float64]
GIVEN = {n: w for n, w in WITNESSES.items() if not w.learned}


@pytest.mark.parametrize("name", RULES)
def test_every_shipped_rule_has_a_witness(name):
    """With the declared order of inputs, and the same params, buffers and states."""
    w, rule = WITNESSES[name], fwgen.load_rule(name)
    assert list(rule.inputs) == list(w.inputs)
    assert set(rule.states) == set(w.states)
    assert set(rule.params) - set(rule.states) == set(w.params)
    assert set(rule.buffers) == set(w.buffers)


@pytest.mark.parametrize("name", MAPS)
def test_every_shipped_map_has_a_witness(name):
    assert name in FEATURE_MAPS or name == "cos_position"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("T", [1, 7, 19])
@pytest.mark.parametrize("name", RULES)
def test_rule_is_its_witness(name, T, dtype, poisoned):
    w = WITNESSES[name]
    problems.check_op(fwgen.compile(name), w, problems.draw(w, T), dtype)


@pytest.mark.parametrize("name", [n for n in RULES if n in GIVEN])
def test_rule_starts_from_its_own_start_state(name, poisoned):
    w = WITNESSES[name]
    p = problems.draw(w, 7, initial=False)
    problems.check_op(fwgen.compile(name), w, p, torch.float32)


def with_map(name: str) -> Witness:
    """The sum rule's witness with another map, its tensors named `<map>_<tensor>`."""
    m = FEATURE_MAPS[name]

    def step(x: Values, p: Values, s: Values):
        tensors = [p[f"{name}_{n}"] for n in (*m.params, *m.buffers)]
        W = s["W"] + torch.outer(x["v"], m.apply(x["k"], *tensors))
        return W @ m.apply(x["q"], *tensors), {"W": W}

    return replace(
        WITNESSES["sum"],
        step=step,
        params={f"{name}_{n}": dims for n, dims in m.params.items()},
        buffers={f"{name}_{n}": dims for n, dims in m.buffers.items()},
        derived={"F": m.features},
        # sum_normalize divides by a sum that positive vectors keep away from 0.
        draw=dict.fromkeys("qk", "positive") if name == "sum_normalize" else {},
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [n for n in MAPS if n in FEATURE_MAPS])
def test_map_is_its_witness(name, dtype, poisoned):
    w = with_map(name)
    op = fwgen.compile("sum", maps={"phi": name})
    problems.check_op(op, w, problems.draw(w, 7), dtype)


@pytest.mark.parametrize("name", RULES)
def test_derived_backward_is_that_of_the_witness(name):
    """The step IR and its adjoint in the numpy interpreter: what kernels are printed from."""
    w = WITNESSES[name]
    p = problems.draw(w, 5, B=1, H=1)
    want = problems.collect(p, lambda q: problems.run_witness(w, q))
    eager = problems.collect(p.to(torch.float32), lambda q: problems.run_witness(w, q))
    problems.compare(by_interpreter.collect(name, p, w.sizes()), want, eager, torch.float64)


def evaluated(w: Witness, text: str) -> Witness:
    """The witness with the second evaluator's reading of a rule text as its step."""
    rule = evaluator.load(text)

    def step(x: Values, p: Values, s: Values):
        inputs = {n: v for n, v in x.items() if n != "t"}
        return evaluator.evaluate(rule, inputs, p, s, x["t"])

    return replace(w, step=step)


@pytest.mark.parametrize("name", RULES)
def test_second_evaluator_reads_the_shipped_text_as_the_witness_does(name):
    w = WITNESSES[name]
    text = (resources.files("fwgen.rules") / f"{name}.yaml").read_text("utf-8")
    p = problems.draw(w, 5)
    want = problems.collect(p, lambda q: problems.run_witness(w, q))
    eager = problems.collect(p.to(torch.float32), lambda q: problems.run_witness(w, q))
    got = problems.collect(p, lambda q: problems.run_witness(evaluated(w, text), q))
    problems.compare(got, want, eager, torch.float64)
