"""The GPU run where there is no GPU: it says so, and its logic works under the interpreter."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.triton
RUN = Path(__file__).with_name("run.sh")
TINY = ["--rules", "sum", "--device", "cpu", "--tokens", "3", "--size", "3", "--shape", "1,3,1,3,3"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(RUN), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so():
    done = run()
    assert done.returncode == 3 and "no CUDA device" in done.stderr


def test_a_rule_is_judged_and_timed(tmp_path):
    done = run(*TINY, "--json", str(tmp_path / "rows.json"), TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["rule"] == "sum" and not row["faults"]
    assert row["forward"] > 0 and row["backward"] > 0
    assert any(line.split()[:2] == ["sum", "yes"] for line in done.stdout.splitlines())


def test_a_wrong_result_is_a_failure(tmp_path):
    """Without the interpreter CPU tensors are refused: every case is a fault, and the exit is 1."""
    done = run(*TINY, "--json", str(tmp_path / "rows.json"), TRITON_INTERPRET="0")
    assert done.returncode == 1
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert set(row["faults"]) == {"call", "half", "packed"} and "forward" not in row
    assert "sum, call: UnsupportedError" in done.stderr


def test_rules_that_get_no_turn_are_named(tmp_path):
    done = run(*TINY, "--budget", "0", "--json", str(tmp_path / "rows.json"))
    assert done.returncode == 1 and "did not get its turn" in done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_all_rules_on_the_device():
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
