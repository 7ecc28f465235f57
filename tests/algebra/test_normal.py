"""The normal form: same results, canonical statements, and the class of every state's update."""

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from normal_rules import CLASSES, RULES, text

from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.algebra.normal import Normal, normalise
from fwgen.ir.interpret import run, run_backward
from fwgen.ir.nodes import Apply, Load, Step
from fwgen.ir.text import dump
from fwgen.ir.verify import verify
from fwgen.ir.walk import loads, variables
from fwgen.language import list_rules, load_rule, lower


def lowered(rule: str) -> Step:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rule.yaml"
        path.write_text(rule, encoding="utf-8")
        return lower(load_rule(path))


@cache
def pair(name: str) -> tuple[Step, Normal]:
    step = lowered(text(name)) if name in RULES else lower(load_rule(name))
    return step, normalise(step)


SIZES = {"K": 4, "V": 3, "D": 3, "J": 2, "S": 3, "R": 2, "M": 3, "N": 2, "B": 2}
ALL = [*RULES, *(f"{name}" for name in list_rules() if name not in RULES)]


def draw(step: Step, seed: int, T: int):
    random = np.random.default_rng(seed)
    sizes = {n: SIZES.get(n, 3) for a in step.arrays for d in a.dims for n in d.names}

    def shape(array):
        return tuple(dim.evaluate(sizes) for dim in array.dims)

    inputs = {
        a.name: 0.7 * random.standard_normal((T, *shape(a)))
        for a in step.arrays
        if a.role == "input"
    }
    heads = {
        a.name: 0.5 * random.standard_normal(shape(a))
        for a in step.arrays
        if a.role in ("param", "buffer")
    }
    states = {s.name: 0.5 * random.standard_normal(shape(step.array(s.old))) for s in step.states}
    return inputs, heads, states, sizes


@pytest.mark.parametrize("name", ALL)
def test_the_normal_form_computes_the_same(name):
    step, normal = pair(name)
    verify(step, "step")
    verify(normal.step, "normal")
    for seed in range(3):
        inputs, heads, states, sizes = draw(step, seed, 4)
        y, final = run(step, inputs, heads, states, sizes)
        other, final_other = run(normal.step, inputs, heads, states, sizes)
        np.testing.assert_allclose(other, y, rtol=1e-9, atol=1e-11)
        assert final.keys() == final_other.keys()
        for state, value in final.items():
            np.testing.assert_allclose(final_other[state], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ALL)
def test_the_normal_form_has_the_same_gradients(name):
    step, normal = pair(name)
    inputs, heads, states, sizes = draw(step, 5, 3)
    y, final = run(step, inputs, heads, states, sizes)
    random = np.random.default_rng(6)
    dy = random.standard_normal(y.shape)
    dfinal = {n: random.standard_normal(value.shape) for n, value in final.items()}
    found, other = (
        run_backward(differentiate(hoist(one)), inputs, heads, states, sizes, dy, dfinal)
        for one in (step, normal.step)
    )
    assert found.keys() == other.keys()
    for key, value in found.items():
        np.testing.assert_allclose(other[key], value, rtol=1e-8, atol=1e-9, err_msg=str(key))


@pytest.mark.parametrize("name", CLASSES)
def test_transition_classes(name):
    classes, axis, rank, chunk = CLASSES[name]
    _, normal = pair(name)
    assert {t.state: t.kind for t in normal.transitions} == classes
    first = normal.transition(next(iter(RULES[name][2].split(":"))))
    assert (first.axis, first.rank) == (axis, rank)
    assert (normal.chunk_reason is None) is chunk, normal.chunk_reason
    if not chunk:
        assert len(normal.chunk_reason) > 10 and normal.chunk_line > 0


NO_READ = ("late_use", "no_memory", "matrix_output")
AFFINE = [n for n, (kinds, *_) in CLASSES.items() if "W" in kinds and "affine" not in kinds["W"]]
OTHER = ("nonlinear", "elementwise decay")
CANONICAL = [n for n in AFFINE if CLASSES[n][0]["W"] not in OTHER and n not in NO_READ]


def factors(body):
    return body.args if isinstance(body, Apply) and body.op == "mul" else (body,)


@pytest.mark.parametrize("name", CANONICAL)
def test_an_affine_update_is_one_statement_of_accesses(name):
    _, normal = pair(name)
    step = normal.step
    state = next(s for s in step.states if s.name == "W")
    update = [s for s in step.statements if s.target == state.new]
    assert len(update) == 1 and not update[0].over
    body = update[0].body
    parts = body.args if isinstance(body, Apply) and body.op == "add" else (body,)
    owned = [p for p in parts if any(load.array == state.old for load in loads(p))]
    assert len(owned) == 1, dump(step)
    for part in parts:
        assert all(isinstance(factor, Load) for factor in factors(part)), dump(step)
        narrow = [f for f in factors(part) if f.array != state.old]
        assert len({tuple(variables(f)) for f in narrow}) == len(narrow), dump(step)
        if part not in owned:
            assert [len(variables(f)) for f in narrow] == [1, 1]


@pytest.mark.parametrize("name", [*CANONICAL, "squashed", "longhorn", "momentum", "test_time"])
def test_reads_are_sums_of_two_accesses(name):
    step = pair(name)[1].step
    matrices = {a for s in step.states for a in (s.old, s.new) if len(step.array(a).dims) == 2}
    found = 0
    for statement in step.statements:
        if matrices.intersection(load.array for load in loads(statement.body)) and statement.over:
            found += 1
            assert statement.reduce == "sum" and len(statement.over) == 1
            parts = factors(statement.body)
            assert len(parts) == 2 and all(isinstance(part, Load) for part in parts), dump(step)
    assert found


@pytest.mark.parametrize("name", CANONICAL)
def test_intermediate_versions_are_gone(name):
    step = pair(name)[1].step
    matrices = [s.target for s in step.statements if len(s.index) == 2]
    assert sorted(matrices) == sorted(
        s.new for s in step.states if len(step.array(s.old).dims) == 2
    )


def test_equal_keys_are_one_write():
    step = pair("delta_in_two_terms")[1].step
    squares = [s for s in step.statements if s.over and "square" in str(s.body)]
    assert len(squares) == 2  # the norms of k and q, although l2norm(k) is written twice
    update = next(s for s in step.statements if s.target == step.states[0].new)
    assert len(update.body.args) == 2


def test_old_reads_come_before_the_update():
    step = pair("bonus_after")[1].step
    position = [s.target for s in step.statements].index(step.states[0].new)
    assert all(
        step.states[0].old not in {load.array for load in loads(s.body)}
        for s in step.statements[position + 1 :]
    )


@pytest.mark.parametrize(
    "name, axis, logs, moves",
    [
        ("gate_of_input", None, False, True),
        ("outer_first", "key", True, True),
        ("oja", "value", True, True),
        ("keep", None, True, True),
        ("steps", None, True, True),
        ("matrix_lstm", None, True, True),
    ],
)
def test_decays(name, axis, logs, moves):
    step, decay = pair(name)[1].step, pair(name)[1].decays[0]
    assert (decay.state, decay.axis, decay.differentiable) == ("W", axis, moves)
    assert (decay.log_array is not None) is logs
    if logs:
        definition = next(s for s in step.statements if s.target == decay.array)
        log = Load(decay.log_array, definition.index)
        assert definition.body == Apply("exp", (log,))


def test_log_of_one_minus_sigmoid():
    assert "logsigmoid(-x)" in dump(pair("keep")[1].step)


def test_decay_of_a_condition_is_not_differentiable():
    rule = """
name: reset
inputs: {q: K, k: K, v: V, flag: scalar}
state: {W: [V, K]}
update: W = where(flag > 0, 0, 1) * W + outer(v, k)
output: W @ q
"""
    (decay,) = normalise(lowered(rule)).decays
    assert not decay.differentiable and decay.log_array is None


@pytest.mark.parametrize(
    "name, words",
    [
        ("squashed", "tanh"),
        ("value_gate", "vector"),
        ("momentum", "W and M feed each other"),
        ("masked", "where"),
        ("detached", "gradient"),
        ("oja", "along the axis of the decay"),
        ("fast_rnn", "h feeds back"),
        ("matrix_write", "outer product"),
        ("cell", "no matrix state"),
    ],
)
def test_the_reason_names_the_term(name, words):
    _, normal = pair(name)
    assert words in normal.chunk_reason


def test_the_branch_not_taken_stays_masked():
    """A factor is never taken out of a `where`: its derivative could be infinite there."""
    rule = """
name: safe
inputs: {q: K, k: K, v: V, a: scalar}
state: {W: [V, K]}
update: W = W + where(a > 0, sqrt(a) * outer(v, k), outer(v, k))
output: W @ q
"""
    step = normalise(lowered(rule)).step
    for statement in step.statements:
        if "sqrt" in str(statement.body):
            assert "select" in str(statement.body)


def test_components_are_in_topological_order():
    _, normal = pair("fast_rnn")
    assert normal.transition("h").component > normal.transition("R").component
    _, normal = pair("momentum")
    assert normal.transition("W").component == normal.transition("M").component


def test_output_does_not_depend_on_the_hash_seed():
    root = Path(__file__).resolve().parents[2]
    code = (
        "from fwgen.language import load_rule, lower, list_rules\n"
        "from fwgen.algebra.normal import normalise\nfrom fwgen.ir.text import dump\n"
        "for name in list_rules():\n    n = normalise(lower(load_rule(name)))\n"
        "    print(dump(n.step), n.transitions, n.decays)"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1 and "" not in texts
