"""The smallest library, and compilers that do what a test wants."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from fwgen.runtime import build

SOURCE = """
#ifndef NO_ANSWER
extern "C" int answer(void) { return ANSWER; }
#endif
#ifndef NO_MORE
extern "C" int more(void) { return ANSWER + 1; }
#endif
"""
PARTS = ("NO_MORE", "NO_ANSWER")


def answer(value: int) -> int:
    """What the library for that value says."""
    library = build.load("answer", SOURCE, [f"ANSWER={value}"], PARTS)
    assert library.more() == library.answer() + 1
    return library.answer()


def command(value: int) -> list[str]:
    """How the library for that value is compiled."""
    return build.compiler_command([f"ANSWER={value}"])


def place(value: int) -> Path:
    """Where the library for that value lies."""
    return build.library_path("answer", SOURCE, command(value))


def script(path: Path, lines: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


def counting_compiler(folder: Path) -> tuple[Path, Path]:
    """A compiler that takes its time, and the file where it notes each library that it makes."""
    log = folder / "compiled.txt"
    noted = f'case "$*" in *-shared*) echo "$@" >> {log};; esac'
    lines = f'{noted}\nsleep 0.3\nexec g++ "$@"'
    return script(folder / "counting", lines), log


def gone(process: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return True
    return state == "Z"


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is so; fails when it does not come to be."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
