"""Sequences that end on, before and behind the edges of the kernels' chunks of tokens."""

import pytest
import torch

import fwgen
import problems
from witnesses import WITNESSES

RULES = [
    "sum",
    "linear_attention",
    "delta",
    "deltanet",
    "gated_delta",
    "gla",
    "recurrent_delta",
    "fwp_additive_tanh",
]
DECAYED = ["gated_delta", "gla", "kda", "simple_gla", "mamba2"]


@pytest.mark.parametrize("T", [2, 3, 15, 16, 17, 31, 32, 33, 64, 65])
@pytest.mark.parametrize("name", RULES)
def test_edge(name, T, poisoned):
    w = WITNESSES[name]
    problems.check_op(fwgen.compile(name), w, problems.draw(w, T), torch.float64)


@pytest.mark.parametrize("T", [1, 2, 3, 34])
@pytest.mark.parametrize("name", [n for n in WITNESSES if n not in RULES])
def test_pair_of_tokens(name, T, poisoned):
    """A scan may take tokens in pairs: one, a pair, a pair and a half, pairs across chunks."""
    w = WITNESSES[name]
    problems.check_op(fwgen.compile(name), w, problems.draw(w, T), torch.float64)


@pytest.mark.parametrize("name", DECAYED)
def test_decay_of_nothing_has_no_gradient(name):
    """At the first token of a fresh sequence there is no state to decay: exactly zero."""
    w = WITNESSES[name]
    p = problems.draw(w, 1, initial=False)
    got = problems.collect(p, lambda q: problems.run_op(fwgen.compile(name), q, backend="cpu"))
    gate = "d.g" if "d.g" in got else "d.params.A_log"
    assert not got[gate].any()
