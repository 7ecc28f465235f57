"""An empty sequence hands its start on as its final state, and that one's gradient back."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import fwgen
from fwgen.language import list_rules
from fwgen.verify.problem import Case, collect, draw, with_room
from fwgen.verify.properties import evaluate

SMALL = {
    "overwritten": ("{W: [K]}", "W = v", "W * q"),
    "stopped": ("{W: [K]}", "W = 0.9 * stop_gradient(W) + v", "W * q"),
    "a step": ("{W: [K]}", "W = where(W > 0, v, k)", "W * q"),
    "of another": ("{W: [K], U: [K]}", "U = tanh(v + prev(W))\n  W = 0.5 * W + v", "U * q"),
    "of a matrix": (
        "{W: [K, K], U: [K, K]}",
        "U = 0.3 * W.T + outer(k, v)\n  W = 0.9 * W + outer(v, k)",
        "U @ q",
    ),
    "learned": ("{W: {dims: [K], init: param}}", "W = v", "W * q"),
}


def compiled(name: str, folder: Path) -> fwgen.CompiledRule:
    """A shipped rule, or one of `SMALL`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name not in SMALL:
            return fwgen.compile(name)
        state, update, output = SMALL[name]
        path = folder / "rule.yaml"
        path.write_text(
            f"name: small\ninputs: {{q: K, k: K, v: K}}\nstate: {state}\n"
            f"update: |\n  {update}\noutput: {output}\n",
            encoding="utf-8",
        )
        return fwgen.compile(path)


def case_of(op: fwgen.CompiledRule, **how: Any) -> Case:
    """Three sequences, the second without tokens."""
    signature = op.signature
    sizes = with_room(signature.room, tuple((dim, 2) for dim in signature.free_dims))
    groups = (signature.inputs, signature.params, signature.starts, signature.buffers)
    names = [spec.name for group in (*groups, signature.states) for spec in group]
    draws = tuple((name, "normal") for name in names)
    return Case(sizes, draws, lengths=(2, 0, 1), loss="final", **how)


@pytest.mark.parametrize("name", [*SMALL, *list_rules()])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_gradients_of_starts(name: str, backend: str, tmp_path: Path) -> None:
    op = compiled(name, tmp_path)
    problem = draw(op.signature, case_of(op, initial=True, dtype="float64"))
    got = collect(problem, op, "final", backend=backend)
    for state in op.signature.states:
        wanted = problem.weights[f"final.{state.name}"][1]
        assert torch.equal(got[f"d.initial.{state.name}"][1], wanted), state.name


@pytest.mark.triton
def test_gradients_of_starts_in_triton() -> None:
    """In a process of its own: Triton's interpreter is chosen before Triton is imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True
    )
    assert run.stdout.split() == [str(place) for place in range(len(SMALL))], run.stderr


def test_a_learned_start_gets_what_empty_sequences_hand_back(tmp_path: Path) -> None:
    op = compiled("learned", tmp_path)
    q, k, v = torch.randn(3, 1, 3, 1, 2, dtype=torch.double).unbind(0)
    start = torch.randn(1, 2, dtype=torch.double, requires_grad=True)
    bounds = torch.tensor([0, 2, 2, 3, 3])
    _, final = op(q, k, v, params={"W": start}, cu_seqlens=bounds, output_final_state=True)
    weights = torch.randn_like(final["W"])
    (got,) = torch.autograd.grad((final["W"] * weights).sum(), start)
    assert torch.allclose(got, weights[1] + weights[3])


if __name__ == "__main__":
    for place, name in enumerate(SMALL):
        with tempfile.TemporaryDirectory() as folder:
            op = compiled(name, Path(folder))
        rows = evaluate(op, case_of(op, initial=True), backend="triton")
        if rows is not None and all(row.fine for row in rows):
            print(place)
