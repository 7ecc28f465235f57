"""Stability notes follow from the structure of a rule, not from its names, and are true."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fwgen.algebra.normal import normalise
from fwgen.commands.report import report_latex, report_text
from fwgen.commands.report.blocks import plain
from fwgen.commands.report.stability import stability
from fwgen.driver import compile_rule
from fwgen.language import list_rules, load_rule, lower

DELTA = """\
name: small
inputs: {q: K, k: K, v: V, beta: scalar, g: scalar}
state: {W: [V, K]}
update: |
  %s
output: W @ q
"""


def notes(source: str | Path) -> list[str]:
    step = lower(load_rule(source))
    return [plain(line) for line in stability(step, normalise(step).transitions)]


def of_update(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(DELTA % "\n  ".join(lines), encoding="utf-8")
    return " ".join(notes(path))


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["W = 2 * W + outer(v, k)"], "grows like 2^n over n tokens, whatever the inputs"),
        (["W = 2 * W + outer(v, k)"], "float32 overflows after 128 tokens"),
        (["W = -3 * W + outer(v, k)"], "grows like 3^n"),
        (["W = 0.5 * W + outer(v, k)"], "fades to a half in 1.0 tokens"),
        (["W = 0 * W + outer(v, k)"], "cleared at every token"),
        (["W = -W + outer(v, k)"], "changes its sign and not its size"),
        (["W = W + outer(v, k)"], "nothing is forgotten"),
        (["W = 2 * W + outer(v, k)", "W = 0.25 * W"], "by 0.5 at every token, so what was written"),
        (["for i in range(3):", "  W = 0.9 * W + outer(v, k)"], "multiplied by 0.729 at every"),
        (["W = -1.5 * W", "W = diag(v) @ W @ diag(k)"], "while |1.5 * v[i]| <= 1 for all i."),
        (["W = -1.5 * W", "W = diag(v) @ W @ diag(k)"], "while |k[j]| <= 1 for all j."),
        (["W = 2 * W @ diag(k) + outer(v, k)"], "while |2 * k[j]| <= 1 for all j."),
        (
            ["W = exp(g) * W", "W = exp(g) * W + outer(v, k)"],
            "exp(g) * exp(g); it does not grow by",
        ),
        (
            ["W = 2 * W", "W = W + beta * outer(v - W @ k, k)"],
            "by 2 at every token, which by itself",
        ),
        (
            ["W = exp(g) * W", "W = W - beta * outer(W @ k, k)", "W = 2 * W"],
            "while |2 * exp(g)| <=",
        ),
        (["W = outer(v, k)"], "W: overwritten at every token."),
        (["W = exp(g) * W + outer(v, k)"], "does not grow by itself while g <= 0."),
        (["W = exp(-exp(beta) * g) * W + outer(v, k)"], "while g >= 0."),
        (["W = sigmoid(g) * W + outer(v, k)"], "at most 1 in size by its definition"),
        (["W = (1 - beta) * W + outer(v, k)"], "while 0 <= beta <= 2."),
        (["W = (1 - sigmoid(beta)) * W + outer(v, k)"], "at most 1 in size by its definition"),
        (["W = beta * W + outer(v, k)"], "while |beta| <= 1."),
        (["W = 2 * exp(g) * W + outer(v, k)"], "while |2 * exp(g)| <= 1."),
        (["keep = exp(g)", "W = keep * W + outer(v, k)"], "while g <= 0."),
        (["W = W @ diag(exp(k)) + outer(v, k)"], "while k[j] <= 0 for all j."),
        (["W = W + beta * outer(v - W @ k, k)"], "while 0 <= beta |k|^2 <= 2. Beyond"),
        (["W = W + sigmoid(beta) * outer(v - W @ k, k)"], "while sigmoid(beta) |k|^2 <= 2. Bey"),
        (["W = W + outer(v - W @ k, k)"], "while |k|^2 <= 2. Beyond"),
        (["f = l2norm(k)", "W = W + beta * outer(v - W @ f, f)"], "0 <= beta <= 2 is enough"),
        (["f = softmax(k)", "W = W + sigmoid(g) * outer(v - W @ f, f)"], "by the definitions of"),
        (["W = W + outer(v - W @ q, k)"], "the eigenvalue 1 - q^T k beside ones"),
        (["W = exp(g) * W + outer(v + W @ q, k)"], "at most |exp(g)| + |q| |k|"),
        (["W = tanh(W + outer(v, k))"], "every element lies between -1 and 1"),
        (["W = (W + outer(v, k)) / maximum(1, norm(W))"], "no bound follows from its form"),
        (["W = W + outer(v, k)", "W = W / maximum(1, norm(W))"], "its norm is at most 1"),
        (["W = W + outer(v, k) / dot(k, q)"], "W_1 divides by s, which may have either sign"),
        (["W = W + outer(v, k) / sum(relu(k))"], "W_1 divides by s, which may be 0"),
        (["W = W + outer(v, exp(k))"], "takes the exponential of k[i]: float32 overflows"),
    ],
)
def test_note(lines: list[str], wanted: str, tmp_path: Path) -> None:
    assert wanted in of_update(tmp_path, *lines)


@pytest.mark.parametrize(
    ("lines", "unwanted"),
    [
        (["W = W + outer(v, softmax(k))"], "divides|exponential"),
        (["W = W + outer(v, l2norm(k))"], "divides|takes"),
        (["W = W + outer(v, k) / sum(elu(k) + 1)"], "divides"),
        (["W = exp(g) * W + outer(v, k)"], "exponential"),
        (["W = W + outer(v, k) / (1 + square(g))"], "divides"),
    ],
)
def test_no_alarm_without_a_reason(lines: list[str], unwanted: str, tmp_path: Path) -> None:
    assert not re.search(unwanted, of_update(tmp_path, *lines))


ANY_NAMES = """\
name: small
inputs: {{{q}: K, {k}: K, {v}: V, {beta}: scalar, {g}: K}}
state: {{{W}: [V, K], {z}: [K]}}
update: |
  {kf} = l2norm({k})
  {W} = {W} @ diag(exp({g}))
  {W} = {W} + {beta} * outer({v} - {W} @ {kf}, {kf})
  {W} = {W} + outer({W} @ {q}, {kf})
  {z} = 3 * {z} + {q}
output: {W} @ {q} / dot({z}, {q})
"""


def test_notes_follow_from_structure_and_not_from_names(tmp_path: Path) -> None:
    usual = {name: name for name in ("q", "k", "v", "beta", "g", "W", "z", "kf")}
    fruit = ["apple", "pear", "plum", "rho", "nut", "Tree", "jar", "core"]
    found = []
    for number, names in enumerate((usual, dict(zip(usual, fruit, strict=True)))):
        path = tmp_path / f"{number}.yaml"
        path.write_text(ANY_NAMES.format_map(names), encoding="utf-8")
        back = {new: old for old, new in names.items()}
        lines = (re.sub(r"[A-Za-z]+", lambda m, b=back: b.get(m[0], m[0]), n) for n in notes(path))
        found.append(list(lines))
    assert found[0] == found[1] and len(found[0]) >= 6


@pytest.mark.parametrize("name", list_rules())
def test_every_state_has_a_note(name: str) -> None:
    found = notes(name)
    for state in load_rule(name).states:
        assert any(line.startswith(f"{state}: ") for line in found), state


@pytest.mark.parametrize("rate", [-0.1, 0.0, 0.7, 2.0, 2.1])
def test_the_condition_of_the_delta_rule_is_sharp(rate: float) -> None:
    """|I - beta k k^T| <= 1 exactly while 0 <= beta |k|^2 <= 2."""
    k = np.random.default_rng(0).standard_normal(5)
    k /= np.linalg.norm(k)
    norm = np.linalg.norm(np.eye(5) - rate * np.outer(k, k), 2)
    assert (norm <= 1 + 1e-12) == (0 <= rate <= 2)


HOPELESS = (
    *("k / (k - k)", "rsqrt(k - k) * k", "log(k - k)", "k * exp(1000 + k - k)", "k / 1e-320"),
    *("k / (t - t)", "k / (2 * sum(k) - sum(k) - sum(k))", "k * (k - k) ** (-2)"),
    "k / ((sum(k) + t) * (sum(k) - t) - sum(k) * sum(k) + t * t)",
)


@pytest.mark.parametrize("factor", HOPELESS)
def test_what_has_no_finite_value_is_no_fault_of_the_report(factor: str, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(DELTA % f"W = W + outer(v, {factor})", encoding="utf-8")
    assert any(line.startswith("W: ") for line in notes(path))


COUNTS = ("0.9 * c + b", "c + b", "c + 1", "exp(-abs(b)) * c", "b", "maximum(c, b)", "1")


@pytest.mark.parametrize("update", COUNTS)
def test_states_that_are_one_number(update: str, tmp_path: Path) -> None:
    path = tmp_path / "counter.yaml"
    path.write_text(
        "name: counter\ninputs: {b: scalar}\nstate: {c: scalar}\n"
        f"update: c = {update}\noutput: c\n"
    )
    compilation = compile_rule(load_rule(path), ("cpu",))
    assert "c: " in report_text(compilation) and "c" in report_latex(compilation)


def test_a_rule_of_many_steps_nests_no_deeper(tmp_path: Path) -> None:
    steps = [f"W = W + {n} * beta * outer(v - W @ k, k)" for n in range(1, 400)]
    assert "W: " in of_update(tmp_path, *steps)


MAXIMA = """\
name: small
inputs: {k: K, g: scalar}
state: {m: K}
update: |
  m = %s
output: m
"""


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("maximum(m, k)", "it grows no further than what it is taken of."),
        ("maximum(logsigmoid(g) + m, k)", "it grows no further than what it is taken of."),
        ("maximum(m - exp(g), k)", "it grows no further than what it is taken of."),
        ("maximum(k, m + g)", "it grows no further than what it is taken of while g <= 0."),
        ("maximum(m + g - k, k)", "taken of while g - k[i] <= 0 for all i."),
        ("maximum(m + 1, k)", "what is added to its old value only raises it"),
        ("maximum(m + exp(g), k)", "what is added to its old value only raises it"),
        ("maximum(maximum(g, m), k)", "it grows no further than what it is taken of."),
    ],
)
def test_running_maxima(value: str, wanted: str, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(MAXIMA % value, encoding="utf-8")
    assert wanted in " ".join(notes(path))


def test_a_state_that_is_overwritten_has_no_factors(tmp_path: Path) -> None:
    """`U = v + prev(W)` holds nothing of the old U; W's gradient also comes through it."""
    path = tmp_path / "small.yaml"
    path.write_text(
        "name: small\ninputs: {v: V}\nstate: {U: [V], W: [V]}\n"
        "update: |\n  U = v + prev(W)\n  W = 0.5 * W + v\noutput: U\n",
        encoding="utf-8",
    )
    text = report_text(compile_rule(load_rule(path), targets=()))
    assert "U[V]: scalar decay by 0: every token overwrites it" in text
    found = notes(path)
    assert "U: overwritten at every token." in found
    assert not any("the states" in line or "same factors" in line for line in found)


def test_a_number_beside_a_vector_is_no_element_wise_product(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(DELTA % "W = 2 * W @ diag(exp(k) * k) + outer(v, k)", encoding="utf-8")
    text = report_latex(compile_rule(load_rule(path), targets=()))
    assert r"$2\, \exp\left(k\right) \odot k$" in text and r"2 \odot" not in text
