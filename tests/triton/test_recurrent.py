"""The recurrent Triton kernels under Triton's interpreter; cases and checks in interpreted.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forms import FORMS, OLDER
from interpreted import CASES, IN_REGISTERS

pytestmark = pytest.mark.triton
HERE = Path(__file__).parent
SHIPPED = ["kda", "recurrent_delta", "mlstm", "fwm", "rwkv4"]
"""A structure each: split state, state with params, several stages, third order, vectors alone."""


def interpreted(script: str, *arguments: str, older: bool = False) -> list[list[str]]:
    """The lines that a script prints in a process where Triton is an interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    if older:
        path = [OLDER, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.fixture(scope="module")
def outcomes():
    """Faults by form and case, from one process per form that runs all; "" is a pass."""
    known: dict[str, dict[str, str]] = {}

    def found(form: str) -> dict[str, str]:
        if form not in known:
            known[form] = dict(interpreted("interpreted.py", form))
        return known[form]

    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", FORMS)
def test_interpreter(outcomes, form, case):
    if form == "registers" or case not in IN_REGISTERS:
        assert outcomes(form)[case] == ""


def faults(form: str, *names: str, older: bool = False) -> list[list[str]]:
    rows = interpreted("shipped.py", form, *names, older=older)
    assert {name for name, *_ in rows} == set(names)
    return [row for row in rows if row[-1]]


@pytest.mark.parametrize("form", FORMS)
def test_a_shipped_rule_of_every_structure(form):
    assert not faults(form, *SHIPPED)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_shipped_rule(form):
    import fwgen

    assert not faults(form, *fwgen.list_rules())


@pytest.mark.parametrize("form", FORMS)
def test_drawn_rules(form):
    interpreted("drawn.py", form, "3", "1")


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_many_drawn_rules(form):
    interpreted("drawn.py", form, "150", "2")


needs_older = pytest.mark.skipif(not OLDER, reason="FWGEN_OLDER_TRITON names no Triton 3.6")


@needs_older
def test_the_older_triton_is_one():
    code = "import triton; print(triton.__version__)"
    environment = {**os.environ, "PYTHONPATH": OLDER}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert run.stdout.decode().startswith("3.6."), run.stdout + run.stderr


@needs_older
@pytest.mark.parametrize("form", FORMS)
def test_the_older_triton(form):
    assert not faults(form, "gated_delta", "recurrent_delta", "mlstm", older=True)
    names = ["tiles", "packed", "position", "moves", "wide", "shared", "bfloat16"]
    assert not any(fault for _, fault in interpreted("interpreted.py", form, *names, older=True))
