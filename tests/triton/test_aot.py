"""Kernels compiled for GPUs that are not there: resources are read back, nothing spills."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.triton
SPILL_FREE = [
    "deltanet",
    "sum",
    "delta",
    "gated_delta",
    "gla",
    "linear_attention",
    "recurrent_delta",
    "fwp_additive_tanh",
]
PROGRAM = """
import json, sys
from types import SimpleNamespace
from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.algebra.normal import normalise
from fwgen.emit.signature import signature_of
from fwgen.emit.triton import triton_sources
from fwgen.commands.aot import compile_ahead
from fwgen.language import load_rule, lower

name, target, dtype = sys.argv[1:]
rule = load_rule(name)
step = lower(rule)
backward = differentiate(hoist(step))
compilation = SimpleNamespace(
    sources=triton_sources(backward.forward, backward),
    signature=signature_of(rule.hash, step, normalise(step), backward, ()),
)
print(json.dumps(compile_ahead(compilation, target, dtype)))
"""


def resources(rule, target, dtype="float32"):
    """Rows of a rule's kernels, from a process where Triton is no interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, rule, target, dtype],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout)


def check(rows, target):
    assert {r["kernel"] for r in rows} == {
        "recurrent_forward",
        "recurrent_step",
        "recurrent_backward",
    }
    for row in rows:
        assert row["target"] == target and row["registers"] > 0
        assert row["spill_bytes"] == 0, row
        assert row["shared_bytes"] <= 48 * 1024 and row["tensor_core_ops"] == 0


def test_a_kernel_for_sm_90():
    check(resources("deltanet", "sm_90"), "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("rule", SPILL_FREE)
def test_nothing_spills_on_sm_90(rule):
    check(resources(rule, "sm_90"), "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("target, dtype", [("sm_80", "bfloat16"), ("gfx942", "float16")])
def test_other_targets(target, dtype):
    rows = resources("gated_delta", target, dtype)
    assert len(rows) == 3 and all(r["registers"] > 0 for r in rows)


def test_an_unknown_target():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, "sum", "riscv", "float32"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode != 0 and "found 'riscv'" in run.stderr
