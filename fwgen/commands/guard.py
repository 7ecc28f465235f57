"""Runs work that may crash the process, and tells what it was doing when it did."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable


def guarded(
    work: Callable[[Callable[[str], None]], int], crashed: Callable[[str, str], int]
) -> int:
    """The exit code of `work(note)`, run in a child process.

    `note` keeps a text; if the child dies by a signal, `crashed(signal's name, last text)` gives
    the exit code. Where the process has threads already (torch is loaded) a child cannot be forked
    safely, and `work` runs here.
    """
    if "torch" in sys.modules or not hasattr(os, "fork"):
        return work(lambda text: None)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as journal:

        def note(text: str) -> None:
            journal.seek(0)
            journal.truncate()
            journal.write(text)
            journal.flush()

        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _finish(work, note)
        try:
            status = os.waitpid(child, 0)[1]
        except KeyboardInterrupt:
            os.waitpid(child, 0)
            raise
        if not os.WIFSIGNALED(status):
            return os.waitstatus_to_exitcode(status)
        journal.seek(0)
        return crashed(signal.Signals(os.WTERMSIG(status)).name, journal.read())


def _finish(work: Callable[[Callable[[str], None]], int], note: Callable[[str], None]) -> None:
    """The child's whole life: it must not return into the parent's code."""
    from fwgen.cli import report_fault

    try:
        code = work(note)
    except BaseException as error:
        code = report_fault(error)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
