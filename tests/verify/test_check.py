"""`fwgen check` finds what is wrong, shrinks it, and passes what is right."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fwgen
from fwgen.cli import main
from fwgen.commands.draws import draws
from fwgen.language import lower
from fwgen.verify import Case, check_form, collect, compare, draw

RULE = """\
name: gated
inputs: {q: K, k: K, v: V, g: scalar, beta: scalar, reset: scalar}
params: {D: V}
state:
  W: [V, K]
update: |
  W = exp(g) * where(reset > 0, 0, 1) * W
  W = W + sigmoid(beta) * outer(v - W @ k, k)
output: W @ q + sqrt(size(K)) * D * v
"""


@pytest.fixture(scope="module")
def rule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rule") / "gated.yaml"
    path.write_text(RULE, encoding="utf-8")
    return path


def drawn(rule: Path) -> Any:
    return draws(lower(fwgen.load_rule(rule)))


class Wrong:
    """An op whose call differs from its reference in one tensor."""

    def __init__(self, op: Any, spoil: Any) -> None:
        self.op, self.spoil = op, spoil
        self.signature, self.rule, self.forms = op.signature, op.rule, op.forms
        self.reference = op.reference

    def __call__(self, *inputs: torch.Tensor, **options: Any) -> Any:
        options |= {"backend": "reference"}
        return self.spoil(*self.op(*inputs, **options))


def test_draws_follow_the_formulas(rule: Path) -> None:
    assert dict(drawn(rule)) == {
        "q": "key",
        "k": "key",
        "v": "key",
        "g": "decay",
        "beta": "normal",
        "reset": "flag",
        "D": "key",
        "W": "small",
    }


def test_reference_passes(rule: Path) -> None:
    outcome = check_form(fwgen.compile(rule), drawn(rule), "reference", "recurrent", cases=5)
    assert outcome.failing is None and outcome.cases >= 5
    assert {"y", "final.W", "d.q", "d.g", "d.params.D", "d.initial.W"} <= set(outcome.rows)
    assert all(row.fine for row in outcome.rows.values())


def test_wrong_output_is_found_and_shrunk(rule: Path) -> None:
    def spoil(y: torch.Tensor, final: Any) -> Any:
        return (y * 1.001, final)

    op: Any = Wrong(fwgen.compile(rule), spoil)
    outcome = check_form(op, drawn(rule), "cpu", "recurrent", cases=20)
    assert outcome.failing is not None and "y" in outcome.message
    assert outcome.failing.tokens == 1 or outcome.failing.lengths
    assert outcome.failing.heads == 1 and dict(outcome.failing.sizes) == {"K": 1, "V": 1}


def test_an_empty_sequence_is_always_tried(rule: Path) -> None:
    def spoil(y: torch.Tensor, final: Any) -> Any:
        wrong = torch.tensor([1.0, 2.0, 1.0]).view(-1, 1, 1, 1)
        return y, {n: x * wrong.to(x) if len(x) == 3 else x for n, x in final.items()}

    op: Any = Wrong(fwgen.compile(rule), spoil)
    outcome = check_form(op, drawn(rule), "cpu", "recurrent", cases=1)
    assert outcome.failing is not None and outcome.failing.lengths == (2, 0, 3)
    assert "W" in outcome.message


def test_wrong_gradient_is_found(rule: Path) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grad: torch.Tensor) -> torch.Tensor:
            return grad[0] * 2

    def spoil(y: torch.Tensor, final: Any) -> Any:
        return y, {name: Doubled.apply(state) for name, state in final.items()}

    op: Any = Wrong(fwgen.compile(rule), spoil)
    outcome = check_form(op, drawn(rule), "cpu", "recurrent", cases=20)
    assert outcome.failing is not None and outcome.failing.loss != "y"
    assert not all(row.fine for row in outcome.rows.values())


def test_same_case_same_tensors(rule: Path) -> None:
    op = fwgen.compile(rule)
    case = Case((("K", 3), ("V", 2)), drawn(rule), 2, 4, 2, seed=9, initial=True, layout="padded")
    one, two = (draw(op.signature, case) for _ in range(2))
    assert all(torch.equal(one.inputs[name], two.inputs[name]) for name in one.inputs)
    assert not one.inputs["q"].is_contiguous()
    dense = draw(op.signature, Case(case.sizes, case.draws, 2, 4, 2, seed=9))
    assert torch.equal(dense.inputs["q"], one.inputs["q"])
    assert "d.reset" not in collect(one, op.reference, "both")  # a flag has no gradient


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e-3])
def test_comparison_raises_the_alarm(bad: float) -> None:
    want = {"y": torch.ones(3, dtype=torch.float64)}
    got = {"y": torch.tensor([1.0, 1.0 + bad, 1.0], dtype=torch.float64)}
    (row,) = compare(got, want, [want], torch.float32)
    assert not row.fine
    (row,) = compare({}, want, [want], torch.float32)
    assert not row.fine
    (row,) = compare({"y": torch.ones(4)}, want, [want], torch.float32)
    assert not row.fine
    (row,) = compare(want, want, [want], torch.float32)
    assert row.fine and row.error == 0


def test_command(rule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--backend", "reference", "--cases", "3", "--seed", "4"]
    assert main(["check", str(rule), *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is True and document["failing"] is None and document["cases"] >= 3
    assert all(row["error"] <= row["allowed"] for row in document["rows"])
    assert main(["check", str(rule), *options]) == 0
    assert "passed" in capsys.readouterr().out


def test_command_prints_a_snippet_that_fails_again(
    rule: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = Wrong(fwgen.compile(rule), lambda y, final: (y + 1, final))
    monkeypatch.setattr(fwgen, "compile", lambda *_, **__: op)
    assert main(["check", str(rule), "--backend", "cpu", "--cases", "3", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is False
    exec(compile(document["failing"], "snippet", "exec"), {})
    assert "WRONG y" in capsys.readouterr().out


def test_command_on_an_illegal_form(rule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = rule.with_name("squash.yaml")
    rule.write_text(RULE.replace("gated", "squash").replace("exp(g)", "exp(g) * tanh(W)"))
    options = ["--backend", "cpu", "--form", "chunk", "--cases", "1"]
    assert main(["check", str(rule), *options]) == 1
    assert "tanh(W)" in capsys.readouterr().err
