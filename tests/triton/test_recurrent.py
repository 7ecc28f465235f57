"""The recurrent Triton kernels under Triton's interpreter; cases and checks in interpreted.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from interpreted import CASES

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def outcomes():
    """Faults by case, from one process that runs all; an empty fault is a pass."""
    here = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(here / "interpreted.py")],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return dict(json.loads(line) for line in run.stdout.splitlines())


@pytest.mark.parametrize("case", CASES)
def test_interpreter(outcomes, case):
    assert outcomes[case] == ""
