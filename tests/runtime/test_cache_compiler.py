"""Compilers that are missing, broken, mad or asleep: what is wrong, and what helps."""

import os
import signal
import time

import pytest
import torch
from hand_delta import delta_signature, draw
from small_library import PARTS, answer, gone, place, script, wait_for

from fwgen.cli import main
from fwgen.errors import InternalError, UnsupportedError
from fwgen.runtime import compiler
from fwgen.runtime.op import CompiledRule

pytestmark = pytest.mark.usefixtures("cache")

BROKEN = {
    "fails": "exit 1",
    "fails in silence, late": "cat > /dev/null; exit 3",
    "crashes": "kill -SEGV $$",
    "talks": "echo fatal error: all is lost; exit 1",
    "garbage": "head -c 50000 /dev/urandom; head -c 50000 /dev/urandom >&2; exit 1",
    "garbage, content": "head -c 50000 /dev/urandom; exit 0",
    "talks without end": "exec yes",
    "makes nothing": "exit 0",
    "makes an empty file": 'while [ "$1" != -o ]; do shift; done; : > "$2"',
    "makes a folder": 'while [ "$1" != -o ]; do shift; done; mkdir "$2"',
    "escapes": r"printf '\033[2J\033]0;title\007'; exit 1",
}


@pytest.mark.parametrize("name", BROKEN)
def test_compiler_that_does_not_work(cache, tmp_path, monkeypatch, name):
    broken = script(tmp_path / "broken", BROKEN[name])
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(UnsupportedError) as error:
        answer(1)
    message = str(error.value)
    assert "CXX" in message and 'backend="reference"' in message and str(broken) in message
    assert len(message) < 5000 and all(c.isprintable() or c == "\n" for c in message)
    assert not list(cache.iterdir())
    monkeypatch.delenv("CXX")
    assert answer(1) == 1


@pytest.mark.parametrize("kind", ["empty PATH", "nonsense", "unbalanced", "no program", "folder"])
def test_no_compiler(monkeypatch, tmp_path, kind):
    text = tmp_path / "text"
    text.write_text("no program")
    text.chmod(0o755)
    if kind == "empty PATH":
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("CXX", "")
    else:
        wanted = {"nonsense": "no-such-compiler -O2", "unbalanced": 'g++ "', "folder": tmp_path}
        monkeypatch.setenv("CXX", str(wanted.get(kind, text)))
    with pytest.raises(UnsupportedError, match=r"C\+\+ compiler|CXX") as error:
        answer(2)
    assert 'backend="reference"' in str(error.value)


def test_reference_needs_no_compiler(sources, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    op = CompiledRule(delta_signature(), sources)
    inputs = draw(5)
    y, _ = op(*inputs.values(), backend="reference")
    assert bool(torch.isfinite(y).all())
    with pytest.raises(UnsupportedError, match=r"no-such-compiler.*reference"):
        op(*inputs.values())
    monkeypatch.delenv("CXX")
    torch.testing.assert_close(op(*inputs.values())[0], y, rtol=1e-4, atol=1e-5)


def test_tools_of_the_compiler_are_missing(tmp_path, monkeypatch):
    """g++ itself is found, its assembler is not."""
    found = compiler.find_compiler()[0]
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", found)
    with pytest.raises(UnsupportedError, match=r"(?s)does not work.*CXX.*reference"):
        answer(3)


def test_compiler_that_is_asleep(cache, tmp_path, monkeypatch):
    """It is stopped with everything that it started, and nothing stays locked."""
    noted = tmp_path / "processes"
    asleep = script(tmp_path / "asleep", f"sleep 600 & echo $! $$ > {noted}; wait")
    monkeypatch.setenv("CXX", str(asleep))
    monkeypatch.setattr(compiler, "LONGEST", 0.5)
    start = time.monotonic()
    with pytest.raises(UnsupportedError, match=r"within 0.5 seconds.*asleep.*CXX"):
        answer(4)
    assert time.monotonic() - start < 20
    wait_for(lambda: all(gone(int(process)) for process in noted.read_text().split()))
    assert not list(cache.iterdir())


@pytest.mark.parametrize("macro", PARTS)
def test_one_part_that_is_refused(cache, tmp_path, monkeypatch, macro):
    """The messages are those of the part, and the others are not waited for without end."""
    lines = f'case "$*" in *-D{macro}*) echo no part of mine; exit 1;; esac\nexec g++ "$@"'
    monkeypatch.setenv("CXX", str(script(tmp_path / "partial", lines)))
    with pytest.raises(InternalError, match="no part of mine"):
        answer(8)
    assert not list(cache.glob("*.so")) and not list(cache.glob(".building*"))


@pytest.mark.parametrize("macro", PARTS)
def test_one_part_that_does_not_end(tmp_path, monkeypatch, macro):
    noted = tmp_path / "process"
    lines = f'case "$*" in *-D{macro}*) echo $$ > {noted}; exec sleep 600;; esac\nexec g++ "$@"'
    monkeypatch.setenv("CXX", str(script(tmp_path / "endless", lines)))
    monkeypatch.setattr(compiler, "LONGEST", 2.0)
    with pytest.raises(UnsupportedError, match=r"within 2 seconds"):
        answer(9)
    wait_for(lambda: gone(int(noted.read_text())))


def test_compiler_that_leaves_something_running(tmp_path, monkeypatch):
    """What holds its output open does not hold the build up."""
    left = tmp_path / "left"
    monkeypatch.setenv(
        "CXX", str(script(tmp_path / "busy", f'sleep 600 & echo $! > {left}\ng++ "$@"'))
    )
    start = time.monotonic()
    try:
        assert answer(5) == 5
        assert time.monotonic() - start < 60
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)


def test_compiler_out_of_memory(tmp_path, monkeypatch):
    lines = "echo 'c++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1"
    monkeypatch.setenv("CXX", str(script(tmp_path / "killed", lines)))
    with pytest.raises(UnsupportedError, match="out of memory"):
        answer(6)


def test_compiler_whose_warnings_are_ignored(tmp_path, monkeypatch):
    lines = 'echo warning: No such luck >&2\nexec g++ "$@"'
    monkeypatch.setenv("CXX", str(script(tmp_path / "warning", lines)))
    assert answer(7) == 7 and place(7).is_file()


@pytest.mark.parametrize("value", ["", "  ", "no-such-compiler", 'g++ "', "false", "/", "yes"])
def test_doctor_with_any_compiler(value, tmp_path, monkeypatch, capsys):
    program = script(tmp_path / "yes", "exec yes | head -c 100000") if value == "yes" else value
    monkeypatch.setenv("CXX", str(program))
    assert main(["doctor"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "C++ compiler" in line)
    assert ("CXX" in row) == bool(value.strip()) or value == "yes"
