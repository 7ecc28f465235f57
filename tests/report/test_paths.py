"""Which gradients of states the factors of a state say all of: those that the report names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.algebra.normal import normalise
from fwgen.commands.report.blocks import plain
from fwgen.commands.report.motion import Link, motion
from fwgen.commands.report.paths import entangled
from fwgen.commands.report.stability import stability
from fwgen.ir.interpret import run_backward, run_step
from fwgen.ir.nodes import Step
from fwgen.language import list_rules, load_rule, lower
from report.linked import moved
from report.test_motion import sizes_of
from sequences import draw

SEEDS = range(3)


def carried(
    step: Step, links: tuple[Link, ...], arrays: dict[str, np.ndarray], old: np.ndarray
) -> np.ndarray:
    """What the links make of another old value, all else as it is."""
    for link in links:
        old = moved(step, link, {**arrays, link.before: old}, sizes_of(step))
    return old


def other_paths(step: Step, seed: int) -> dict[str, float]:
    """What the factors leave unsaid of the gradient of each state, for one token."""
    sizes, rng = sizes_of(step), np.random.default_rng(seed)
    problem = draw(step, sizes, 1, seed)
    given = {**problem.heads, **{n: x[0] for n, x in problem.inputs.items()}}
    given |= {s.old: problem.states[s.name] for s in step.states}
    arrays = run_step(step, given, sizes, 3)
    later = {s.name: rng.standard_normal(arrays[s.new].shape) for s in step.states}
    backward = differentiate(hoist(step))
    found = run_backward(
        backward, problem.inputs, problem.heads, problem.states, sizes, None, later, 3
    )
    left = {}
    for state in step.states:
        links, along = motion(step, state), rng.standard_normal(arrays[state.old].shape)
        said = 0.0
        if links is not None:
            there, nothing = (carried(step, links, arrays, x) for x in (along, 0 * along))
            said = float((later[state.name] * (there - nothing)).sum())
        left[state.name] = abs(float((found["state", state.name] * along).sum()) - said)
    return left


@pytest.mark.parametrize("name", list_rules())
def test_other_paths(name: str) -> None:
    step = lower(load_rule(name))
    mixed, found = entangled(step), [other_paths(step, seed) for seed in SEEDS]
    for state in step.states:
        left = [paths[state.name] for paths in found]
        if state.name in mixed:
            assert max(left) > 1e-6, state.name
        else:
            assert max(left) < 1e-9, state.name


RULE = """\
name: small
inputs: {q: K, k: K, v: V, g: scalar}
state: {W: [V, K], U: [V, K]}
update: |
  %s
output: W @ q + U @ q
"""


@pytest.mark.parametrize(
    ("lines", "mixed"),
    [
        (["W = exp(g) * W + outer(v, k)", "U = exp(g) * U + outer(v, q)"], ""),
        (["W = exp(g) * W + outer(v, k)", "U = exp(g) * U + outer(W @ k, k)"], "W"),
        (["W = exp(g) * W + outer(v, k)", "U = sigmoid(W[0, 0]) * U + outer(v, k)"], "W"),
        (["W = exp(g) * W + outer(v, k)", "U = exp(g) * U + outer(v - U @ (W.T @ v), k)"], "W"),
        (
            [
                "W = exp(g) * W + outer(v, k)",
                "U = sigmoid(stop_gradient(W[0, 0])) * U + outer(v, k)",
            ],
            "",
        ),
        (
            [
                "W = exp(g) * W + outer(v, k)",
                "U = where(W[0, 0] > 0, exp(g), exp(2 * g)) * U + outer(v, k)",
            ],
            "",
        ),
        (["W = exp(g) * W + outer(v - U @ k, k)", "U = exp(g) * U + outer(v - W @ k, k)"], "UW"),
    ],
)
def test_notes_on_gradients(lines: list[str], mixed: str, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(RULE % "\n  ".join(lines), encoding="utf-8")
    step = lower(load_rule(path))
    assert entangled(step) == {*mixed}
    for seed in SEEDS:
        left = other_paths(step, seed)
        assert {name for name, size in left.items() if size > 1e-9} == {*mixed}
    notes = [plain(line) for line in stability(step, normalise(step).transitions)]
    whose = ", ".join(name for name in "WU" if name not in mixed) if mixed else "the states"
    bounded = [note for note in notes if note.startswith("Gradients of ")]
    assert [note.split(" move")[0] for note in bounded] == [f"Gradients of {whose}"] * bool(whose)
    assert any("do not bound" in note for note in notes) == bool(mixed)
