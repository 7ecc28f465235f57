"""Kernels compiled for GPUs that are not there: resources are read back, nothing spills."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forms import OLDER

import fwgen

pytestmark = pytest.mark.triton
KERNELS = ("recurrent_step", "recurrent_forward", "recurrent_backward")
PROGRAM = """
import json, sys
from fwgen.commands.aot import compile_ahead
from fwgen.driver import compile_rule
from fwgen.language import load_rule

name, target, dtype, size = sys.argv[1:]
compilation = compile_rule(load_rule(name), ("triton",))
print(json.dumps(compile_ahead(compilation, target, dtype, int(size))))
"""
TARGETS = ("sm_90", "sm_80", "gfx942")
ROOT = Path(__file__).resolve().parents[2]


def process(*command, older=False, **options):
    """A process in which Triton is no interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    if older:
        path = [OLDER, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
        **options,
    )


def resources(rule, target, dtype="float32", size=64, older=False):
    """Rows of a rule's kernels."""
    run = process("-c", PROGRAM, rule, target, dtype, str(size), older=older)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout)


def check(rows, target, states="registers"):
    assert [r["kernel"] for r in rows] == list(KERNELS)
    for row in rows:
        assert row["target"] == target and row["registers"] > 0
        assert row["states"] == states or states == "either"
        assert row["shared_bytes"] <= 64 * 1024 and row["tensor_core_ops"] == 0
        # Where one program's state fits registers, so does all that is computed with it.
        assert row["spill_bytes"] == 0 or row["states"] == "memory", row


def test_kernels_for_sm_90():
    check(resources("deltanet", "sm_90"), "sm_90")


@pytest.mark.parametrize("rule, target", [("momentum_delta", "sm_80"), ("rwkv6", "sm_90")])
def test_nothing_spills_at_a_size_of_128(rule, target):
    """Two states in the backward; one that the assembler spilled to run more programs at once."""
    check(resources(rule, target, size=128), target)


def test_kernels_with_states_in_memory():
    check(resources("fwm", "sm_90", "bfloat16"), "sm_90", "memory")


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rule", fwgen.list_rules())
def test_every_kernel_compiles_and_nothing_in_registers_spills(rule, target, size):
    check(resources(rule, target, size=size), target, "either")


@pytest.mark.slow
@pytest.mark.parametrize("target, dtype", [("sm_80", "bfloat16"), ("gfx942", "float16")])
def test_other_inputs(target, dtype):
    check(resources("gated_delta", target, dtype), target)


@pytest.mark.skipif(not OLDER, reason="FWGEN_OLDER_TRITON names no Triton 3.6")
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_older_triton(target):
    rows = resources("recurrent_delta", target, older=True)
    assert [r["kernel"] for r in rows] == list(KERNELS)
    check(resources("gated_delta", target, older=True), target)


def test_the_report_of_a_package_has_the_table(tmp_path):
    command = ["-m", "fwgen", "compile", "sum", "-o", str(tmp_path)]
    done = process(*command, "--aot", "gfx942,sm_80", "--json", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["aot"]
    assert [r["target"] for r in rows] == ["gfx942"] * 3 + ["sm_80"] * 3
    report = (tmp_path / "sum" / "REPORT.md").read_text("utf-8")
    for row in rows:
        assert f"| {' | '.join(map(str, row.values()))} |" in report
    done = process(*command, "--check", cwd=ROOT)
    assert done.returncode == 0 and "fresh" in done.stdout, done.stdout + done.stderr


def test_the_page_has_every_rule_target_and_size():
    """What docs/aot.py wrote: all rows of a rule, or its name among those that lack some."""
    page = (ROOT / "docs" / "gpu.md").read_text("utf-8")
    missing = re.findall(r"^Not measured since .*: (.*)\.$", page, re.M)
    for rule in fwgen.list_rules():
        for size in (64, 128):
            lines = [x for x in page.splitlines() if x.startswith(f"| {rule} | {size} |")]
            if any(rule in names.split(", ") for names in missing):
                assert not lines, rule
                continue
            assert [x.split(" | ")[2] for x in lines] == ["step", "forward", "backward"], rule
            assert all(x.count(" / ") == 3 * len(TARGETS) for x in lines), rule


def test_an_unknown_target():
    run = process("-c", PROGRAM, "sum", "riscv", "float32", "8")
    assert run.returncode != 0 and "found 'riscv'" in run.stderr
