"""`op.plan` says in one sentence why it would run what it would run."""

from __future__ import annotations

import pytest
import torch

import fwgen

ASKED = [
    ({}, ['backend="auto" is cpu for cpu tensors', "the form is recurrent, since"]),
    ({"backend": "cpu"}, ['backend="cpu" was asked for', "the form is recurrent, since"]),
    ({"backend": "reference"}, ['backend="reference" was asked for', "loop over tokens"]),
]


@pytest.mark.parametrize(("options", "wanted"), ASKED, ids=str)
def test_why(options: dict[str, str], wanted: list[str]) -> None:
    op = fwgen.compile("sum")
    x = torch.zeros(1, 2, 1, 3)
    why = op.plan(x, x, x, **options)["why"]
    assert isinstance(why, str) and why and "\n" not in why
    assert all(part in why for part in wanted)


def test_why_names_what_forbids_the_chunk_form() -> None:
    op = fwgen.compile("fwp_additive_tanh")
    x = torch.zeros(1, 2, 1, 3)
    assert op.signature.chunk_reason is not None
    assert op.signature.chunk_reason in op.plan(x, x, x)["why"]
