"""Kinks, poles and NaN of every function: values and gradients are PyTorch's on every backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from edges import EXPRESSIONS

HERE = Path(__file__).parent


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_every_function_at_its_edges(backend: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(HERE / "edges.py"), backend],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    found = dict(json.loads(line) for line in ran.stdout.splitlines())
    assert set(found) == set(EXPRESSIONS)
    assert {expression: faults for expression, faults in found.items() if faults} == {}
