"""A crash of native code ends as a message and a snippet, not as the end of the command."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os, signal, sys
from fwgen.commands.guard import guarded

def work(note):
    note("before")
    note("the call")
    {what}
    return 0

def crashed(name, text):
    print(name, text)
    return 7

code = guarded(work, crashed)
print("exit", code)
"""


def run(what: str) -> str:
    command = [sys.executable, "-c", CODE.format(what=what)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def test_crash() -> None:
    assert run("os.kill(os.getpid(), signal.SIGSEGV)") == "SIGSEGV the call\nexit 7\n"


def test_success_and_failure() -> None:
    assert run("pass") == "exit 0\n"
    assert run("raise ValueError('x')") == "exit 3\n"
    assert run("return 1") == "exit 1\n"
