"""Accesses that a small size would push out of their array are refused before a kernel runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fwgen
from fwgen.emit.signature import room
from fwgen.ir.dims import Dim
from fwgen.language import lower
from fwgen.verify import check_form

RULE = """\
name: slices
inputs: {k: K, v: V}
state:
  W: [V, K]
update: |
  a = concat(tanh(k), k[0:3])
  W = W + outer(v, a[0:K] * a[2])
output: W @ k
"""


@pytest.fixture(scope="module")
def rule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rule") / "slices.yaml"
    path.write_text(RULE, encoding="utf-8")
    return path


def test_room_is_what_slices_ask_for(rule: Path) -> None:
    assert room(lower(fwgen.load_rule(rule))) == (Dim.of("K") - 3,)


def test_small_sizes_are_refused(rule: Path) -> None:
    op = fwgen.compile(rule)
    v = torch.ones(1, 2, 1, 2)
    with pytest.raises(fwgen.ArgumentError, match="K - 3 >= 0, found K = 2"):
        op(torch.ones(1, 2, 1, 2), v)
    assert op(torch.ones(1, 2, 1, 3), v)[0].shape == (1, 2, 1, 2)


def test_gradient_of_a_slice_adds_to_the_rest(rule: Path) -> None:
    draws = (("k", "key"), ("v", "key"), ("W", "small"))
    outcome = check_form(fwgen.compile(rule), draws, "cpu", "recurrent", cases=8)
    assert outcome.message == "" and outcome.cases >= 8
