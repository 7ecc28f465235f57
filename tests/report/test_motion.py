"""Links say how a token moves a state; bounds hold for what the token computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fwgen.commands.report.bounds import Bounds
from fwgen.commands.report.matrix import Matrix, grouped, symmetric
from fwgen.commands.report.motion import motion
from fwgen.commands.report.norms import at_most_one, clipped
from fwgen.emit.latex import symbols
from fwgen.ir.interpret import run_step
from fwgen.ir.nodes import Step
from fwgen.language import list_rules, load_rule, lower
from report.linked import moved
from sequences import draw

SIZES = {"K": 3, "V": 2, "D": 3}
WITHOUT_LINKS = {  # rule -> states whose update is no decay, erases and writes
    "delta_lstm": {"h"},
    "delta_rnn": {"h"},
    "elstm": {"c"},
    "fwm": {"F"},
    "fwm2": {"W"},
    "fwp_additive_tanh": {"W"},
    "mlstm": {"m"},
    "recurrent_delta": {"y"},
    "rwkv4": {"m"},
    "srwm": {"Wq", "Wk", "wb"},
    "ttt_linear": {"W", "c"},
}


def sizes_of(step: Step) -> dict[str, int]:
    names = {name for a in step.arrays for dim in a.dims for name in dim.names}
    return {name: SIZES.get(name, 4) for name in sorted(names)}


def token(step: Step, seed: int, t: int = 3) -> dict[str, np.ndarray]:
    """All arrays of one token with drawn inputs and states."""
    sizes = sizes_of(step)
    problem = draw(step, sizes, 1, seed)
    given = {**problem.heads, **{n: x[0] for n, x in problem.inputs.items()}}
    given |= {s.old: problem.states[s.name] for s in step.states}
    return run_step(step, given, sizes, t)


@pytest.mark.parametrize("name", list_rules())
def test_links_are_the_update(name: str) -> None:
    step = lower(load_rule(name))
    arrays = token(step, seed=4)
    for state in step.states:
        links = motion(step, state)
        assert (links is None) == (state.name in WITHOUT_LINKS.get(name, ())), state.name
        for link in links or ():
            got = moved(step, link, arrays, sizes_of(step))
            np.testing.assert_allclose(got, arrays[link.after], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "state", "wanted"),
    [
        ("deltanet", "W", ["W_1 = W (I - beta kf kf^T) + beta v kf^T"]),
        ("gla", "W", ["W_1 = W diag(exp(g)) + v k^T"]),
        ("rwkv7", "W", ["W_1 = W (diag(exp(g)) + a b^T) + v k^T"]),
        ("srwm", "Wy", ["Wy_1 = Wy (I + b[0] (q - k) k^T)"]),
        ("mlstm", "n", ["n_1 = keep n + write kf"]),
        ("hgrn2", "W", ["W_1 = W diag(f) + v (1 - f)^T"]),
        ("titans", "M", ["M_1 = eta M - theta (p - v) kf^T"]),
        ("oja", "W", ["W_1 = diag(exp(gv)) W", "W_2 = (I - beta v v^T) W_1 + beta v k^T"]),
        ("gdn2", "W", ["W_1 = W diag(exp(g))", "W_2 = W_1 (I - (b * kf) kf^T) + (w * v) kf^T"]),
    ],
)
def test_matrix_notation(name: str, state: str, wanted: list[str]) -> None:
    step = lower(load_rule(name))
    links = motion(step, next(s for s in step.states if s.name == state))
    assert links is not None
    assert [Matrix(symbols(step.arrays)).link(link).text for link in links] == wanted


@pytest.mark.parametrize("name", list_rules())
def test_bounds_hold(name: str) -> None:
    step = lower(load_rule(name))
    bounds = Bounds(step)
    positive = {s.old for s in step.states if bounds.array(s.old).low == 0}
    for seed in range(5):
        sizes = sizes_of(step)
        problem = draw(step, sizes, 1, seed)
        given = {**problem.heads, **{n: 3 * x[0] for n, x in problem.inputs.items()}}
        states = {s.old: problem.states[s.name] for s in step.states}
        given |= {old: np.abs(x) if old in positive else x for old, x in states.items()}
        for array, found in run_step(step, given, sizes, seed).items():
            known = bounds.array(array)
            slack = 1e-9 * (1 + np.abs(found))
            assert (found >= known.low - slack).all(), f"{array}: {found} below {known}"
            assert (found <= known.high + slack).all(), f"{array}: {found} above {known}"


def test_bounds_say_something() -> None:
    mlstm = Bounds(lower(load_rule("mlstm")))
    assert mlstm.array("keep").high == 1 and mlstm.array("write").high == 1
    performer = Bounds(lower(load_rule("performer")))
    assert performer.array("z").low == 0 and performer.array("s_2").low == 0
    assert Bounds(lower(load_rule("fwp_additive_tanh"))).array("W_1").high == 1


SHORT = {
    "delta": {"kf", "phi_q"},
    "delta_product": {"kf", "kf_1", "phi_q"},
    "deltanet": {"kf", "phi_q"},
    "recurrent_delta": {"kf", "qf"},
    "srwm": {"q", "k"},
    "gla": set(),
    "performer": set(),
}


@pytest.mark.parametrize("name", SHORT)
def test_vectors_of_norm_at_most_one(name: str) -> None:
    step = lower(load_rule(name))
    bounds = Bounds(step)
    vectors = {a.name for a in step.arrays if len(a.dims) == 1 and a.role == "local"}
    found = {n for n in vectors if at_most_one(n, bounds)}
    assert SHORT[name] <= found
    for seed in range(5):
        arrays = token(step, seed)
        assert all(np.linalg.norm(arrays[n]) <= 1 + 1e-12 for n in found)


def test_clipped_norms() -> None:
    for name, state in (("fwm", "F_2"), ("fwm2", "W_2")):
        step = lower(load_rule(name))
        assert clipped(state, Bounds(step)) and not clipped(state[:1] + "_1", Bounds(step))
        assert max(np.linalg.norm(token(step, seed)[state]) for seed in range(5)) <= 1 + 1e-12


def test_symmetric_erases_are_told_from_others() -> None:
    kinds = {}
    for name in ("deltanet", "kda", "comba", "gdn2", "rwkv7", "oja"):
        step = lower(load_rule(name))
        links = motion(step, step.states[0])
        assert links is not None
        (group,) = grouped(links[-1].erases)
        kinds[name] = symmetric(group)
    assert kinds == {
        "deltanet": True,
        "kda": True,
        "oja": True,
        "comba": False,
        "gdn2": False,
        "rwkv7": False,
    }


def test_a_transposed_write_has_no_matrix_form(tmp_path: Path) -> None:
    path = tmp_path / "flip.yaml"
    head = "name: flip\ninputs: {A: [D, D]}\nstate: {W: [D, D]}\noutput: W[0]\n"
    for update, clear in (("W + A.T", False), ("W + A", True), ("W.T + A", False)):
        path.write_text(f"{head}update: W = {update}\n", encoding="utf-8")
        step = lower(load_rule(path))
        assert (motion(step, step.states[0]) is not None) is clear, update
