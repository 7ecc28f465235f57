"""The system's C++ compiler: finding it, and running it so that every outcome has a message."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import InternalError, UnsupportedError
from .forks import starting

LONGEST = 900.0
"""Seconds that one build may take; the largest kernels take a minute of an idle processor."""
MOST_OUTPUT = 1 << 20
"""Bytes of messages that are read; more comes from no compiler."""
PAUSE = 0.1
PROBE = 'extern "C" int fwgen_probe(int n) {\n#pragma omp parallel\n    n += 1;\n    return n;\n}\n'
DISK = (
    "No space left",
    "Read-only file system",
    "Permission denied",
    "quota exceeded",
    "File size limit exceeded",
    "File too large",
    "error writing to",
)
MEMORY = ("Killed", "out of memory", "memory exhausted", "annot allocate memory", "bad_alloc")
REMEDY = (
    "install g++, or set CXX to a compiler that works, "
    'or pass backend="reference" for the slow PyTorch loop'
)


def find_compiler() -> list[str]:
    """The command of the C++ compiler: `CXX`, else g++ or c++; UnsupportedError without one."""
    wanted = os.environ.get("CXX", "").strip()
    for command in [wanted] if wanted else ["g++", "c++"]:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UnsupportedError(f"CXX, {wanted!r}, is no command ({error}); {REMEDY}") from None
        program = shutil.which(words[0]) if words else None
        if program:
            return [str(Path(program).absolute()), *words[1:]]
    missing = f"the C++ compiler of CXX, {wanted!r}," if wanted else "a C++ compiler (g++)"
    raise UnsupportedError(
        f"{missing} was not found, and the CPU kernels are compiled on first use; {REMEDY}"
    )


def compile_library(
    command: Sequence[str], source: str, folder: Path, parts: Sequence[str] = ()
) -> Path:
    """The library of a source, compiled inside a folder of its own by a command with its flags.

    With macros as `parts`, each makes an object of its own, at the same time as the others. Raises
    OSError where the disk is at fault, UnsupportedError where the compiler is, and InternalError
    where a compiler that works refuses the source.
    """
    text, library = folder / "library.cpp", folder / "library.so"
    text.write_text(source, encoding="utf-8")
    objects = [folder / f"part{n}.o" for n in range(len(parts))]
    alone = [word for word in command if word != "-shared"]
    runs = [
        [*alone, "-c", f"-D{macro}", str(text), "-o", str(made)]
        for macro, made in zip(parts, objects, strict=True)
    ]
    code, output = _run(runs, folder) if runs else (0, "")
    if code == 0:
        inputs = objects or [text]
        code, output = _run([[*command, *map(str, inputs), "-o", str(library)]], folder)
    if code == 0 and library.is_file() and library.stat().st_size:
        return library
    shown = _readable(output[-4000:])
    if any(word in output for word in DISK):
        raise OSError(shown.splitlines()[-1])
    if code < 0 or any(word in output for word in MEMORY):
        what = f"signal {-code}: {shlex.join(command[:1])}" if code < 0 else "out of memory"
        raise UnsupportedError(f"the C++ compiler was ended ({what})\n{shown}\n{REMEDY}")
    if code == 0 or not _works(command, folder):
        what = f"exit code {code}" if code else "it made no library"
        raise UnsupportedError(
            f"the C++ compiler does not work ({what}): {shlex.join(command[:1])}\n{shown}\n{REMEDY}"
        )
    raise InternalError(
        f"the C++ compiler refused a generated kernel (exit code {code}); please report this with "
        f"the rule and the following text.\n{shlex.join(command)}\n{shown}"
    )


def _works(command: Sequence[str], folder: Path) -> bool:
    """Whether the compiler can make a library of the simplest source that uses threads."""
    text, library = folder / "probe.cpp", folder / "probe.so"
    text.write_text(PROBE, encoding="utf-8")
    code, _ = _run([[*command, str(text), "-o", str(library)]], folder)
    return code == 0 and library.is_file()


def _readable(text: str) -> str:
    """The text without what a terminal would act on."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text).strip() or "no message"


def _run(commands: Sequence[Sequence[str]], folder: Path) -> tuple[int, str]:
    """Exit code and messages of commands beside each other: of the first that fails, if one does.

    The compiler's own temporary files go into `folder`: one place that needs space.
    """
    end = time.monotonic() + LONGEST
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_started(command, folder)) for command in commands]
        found = [_outcome(process, commands[0][0], end) for process in started]
    return next((outcome for outcome in found if outcome[0]), found[0])


@contextlib.contextmanager
def _started(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process, which does not outlive the block."""
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"}
    try:
        with starting:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
            )
    except OSError as error:
        raise UnsupportedError(f"the C++ compiler does not run: {error}; {REMEDY}") from None
    with process:
        try:
            yield process
        finally:
            if process.returncode is None:
                _kill(process)


def _outcome(process: subprocess.Popen[bytes], name: str, end: float) -> tuple[int, str]:
    """Exit code and messages of a process that has until a moment to finish."""
    try:
        output = _listen(process, end)
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise UnsupportedError(
            f"the C++ compiler did not finish within {LONGEST:g} seconds and was stopped: "
            f"{shlex.quote(name)}; {REMEDY}"
        ) from None
    code = process.returncode if len(output) <= MOST_OUTPUT else 1
    return code, output.decode("utf-8", "replace")


def _listen(process: subprocess.Popen[bytes], end: float) -> bytes:
    """What the compiler prints until it is done, or until a moment; one without end is stopped."""
    assert process.stdout is not None
    output = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < end:
            ended = process.poll() is not None
            if selector.select(PAUSE):
                part = os.read(process.stdout.fileno(), 1 << 16)
                output += part
                if len(output) > MOST_OUTPUT:
                    _kill(process)
                    break
                if not part:
                    break
            elif ended:  # what it left running may hold the pipe
                break
    return output


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a compiler and the passes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
