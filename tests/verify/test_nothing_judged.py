"""A rule that is NaN everywhere is not proven by the calls that could not be compared."""

import subprocess
import sys

import pytest

RULE = """\
name: never
inputs: {q: K, k: K, v: V}
state: {W: [V, K]}
update: W = W + outer(v, k)
output: W @ q + log(-1 - square(v))
"""


def test_check_fails_where_nothing_could_be_judged(tmp_path):
    (tmp_path / "never.yaml").write_text(RULE)
    run = subprocess.run(
        [sys.executable, "-m", "fwgen", "check", "never.yaml", "--backend", "cpu", "--cases", "4"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert run.returncode == 1 and "could be judged" in run.stdout + run.stderr


@pytest.mark.parametrize("name", ["delta", "gla", "recurrent_delta"])
def test_one_case_is_enough_to_judge(name):
    command = [sys.executable, "-m", "fwgen", "check", name, "--backend", "cpu", "--cases", "1"]
    run = subprocess.run(command, text=True, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
