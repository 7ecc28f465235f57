"""The derived backward against differences, against its own linear map, and as text."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.ir.interpret import run
from fwgen.ir.nodes import Apply, Array, Load, Step
from fwgen.ir.text import statement_text
from fwgen.ir.verify import verify
from fwgen.ir.walk import scalars
from sequences import assert_gradients, draw, gradients
from steps import STEPS

SIZES = {"K": 3, "V": 2, "D": 3}


@pytest.fixture(params=sorted(STEPS))
def step(request: pytest.FixtureRequest) -> Step:
    return STEPS[request.param]


def test_hoisting_keeps_the_token(step: Step) -> None:
    hoisted = hoist(step)
    verify(hoisted, "hoist")
    problem = draw(step, SIZES, 4, seed=1)
    args = (problem.inputs, problem.heads, problem.states, SIZES)
    (y, final), (y2, final2) = run(step, *args), run(hoisted, *args)
    np.testing.assert_allclose(y2, y, rtol=1e-12, atol=1e-13)
    for name in final:
        np.testing.assert_allclose(final2[name], final[name], rtol=1e-12, atol=1e-13)


def test_hoisting_twice_changes_nothing(step: Step) -> None:
    once = hoist(step)
    assert hoist(once) == once


def test_gradients_equal_differences(step: Step) -> None:
    backward = differentiate(hoist(step))
    verify(backward, "backward")
    for seed in range(3):
        assert_gradients(step, backward, draw(step, SIZES, 4, seed), seed)


def test_gradients_of_an_unhoisted_step_are_the_same(step: Step) -> None:
    problem = draw(step, SIZES, 4, seed=5)
    plain = gradients(differentiate(step), problem)
    hoisted = gradients(differentiate(hoist(step)), problem)
    assert plain.keys() == hoisted.keys()
    for name in plain:
        np.testing.assert_allclose(hoisted[name], plain[name], rtol=1e-9, atol=1e-11)


def test_backward_is_linear_in_what_arrives(step: Step) -> None:
    backward = differentiate(hoist(step))
    a, b = draw(step, SIZES, 4, seed=3), draw(step, SIZES, 4, seed=4)
    mixed = replace(
        a,
        dy=2 * a.dy - 3 * b.dy,
        dfinal={name: 2 * a.dfinal[name] - 3 * b.dfinal[name] for name in a.dfinal},
    )
    other = replace(a, dy=b.dy, dfinal=b.dfinal)
    one, two, both = (gradients(backward, p) for p in (a, other, mixed))
    for name in both:
        np.testing.assert_allclose(both[name], 2 * one[name] - 3 * two[name], atol=1e-11)


def test_wide_adjoints_are_products_of_accesses() -> None:
    """What later passes rely on: no functions and no inner sums in a matrix-sized adjoint."""
    for name in ("delta", "gated_delta", "diagonal", "recurrent_input"):
        for statement in differentiate(hoist(STEPS[name])).statements:
            if len({*statement.free, *statement.over}) >= 2:
                ops = {n.op for n in scalars(statement.body) if isinstance(n, Apply)}
                assert ops <= {"mul"}, statement_text(statement)


def test_the_delta_rule_reads_as_in_the_papers() -> None:
    texts = [statement_text(s) for s in differentiate(hoist(STEPS["delta"])).statements]
    assert texts == [
        "d_W_1[i, j] += d_y[i] * q[j]",
        "d_q[j] += sum_i d_y[i] * W_1[i, j]",
        "d_W[i, j] += d_W_1[i, j]",
        "d_u[i] += sum_j d_W_1[i, j] * k[j]",
        "d_k[j] += sum_i d_W_1[i, j] * u[i]",
        "d_beta += sum_i d_u[i] * (v[i] - p[i])",
        "d_v[i] += d_u[i] * beta",
        "d_p[i] += -d_u[i] * beta",
        "d_W[i, j] += d_p[i] * k[j]",
        "d_k[j] += sum_i d_p[i] * W[i, j]",
    ]


def test_dead_values_get_no_adjoint() -> None:
    backward = differentiate(hoist(STEPS["recurrent_input"]))
    touched = {s.target for s in backward.statements}
    assert not any(name.startswith("d_m_") for name in touched)
    written = {
        node.array
        for s in backward.statements
        for node in scalars(s.body)
        if isinstance(node, Load)
    }
    results = {adjoint for _, adjoint in backward.results}
    assert touched <= written | results


def test_nothing_for_buffers_and_whole_numbers() -> None:
    step = STEPS["delta"]
    roles = {"beta": {"role": "buffer"}, "v": {"floating": False}}
    arrays = tuple(replace(a, **roles.get(a.name, {})) for a in step.arrays)  # type: ignore[arg-type]
    backward = differentiate(hoist(replace(step, arrays=arrays)))
    verify(backward, "backward")
    assert [name for name, _ in backward.results] == ["q", "k", "W"]
    assert not {"d_beta", "d_v"} & {a.name for a in backward.arrays}


def test_what_has_no_effect_has_no_adjoint() -> None:
    step = STEPS["delta"]
    unused = Array("x", (), "input")
    backward = differentiate(hoist(replace(step, arrays=(*step.arrays, unused))))
    verify(backward, "backward")
    assert dict(backward.results)["x"] is None


def test_same_text_under_every_hash_seed() -> None:
    program = (
        "from steps import STEPS\n"
        "from fwgen.algebra.backward import differentiate\n"
        "from fwgen.algebra.hoist import hoist\n"
        "from fwgen.ir.text import dump\n"
        "from fwgen.language import load_rule, lower\n"
        "drawn = [lower(load_rule(n)) for n in ('ttt_linear', 'agalite', 'srwm', 'fwm')]\n"
        "for s in [*STEPS.values(), *drawn]:\n"
        "    print(dump(hoist(s)), dump(differentiate(hoist(s))))\n"
    )
    texts = set()
    for seed in ("0", "1", "77"):
        paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert texts.pop().count("backward of") == len(STEPS) + 4
