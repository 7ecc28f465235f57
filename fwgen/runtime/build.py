"""C++ source -> loaded library, through a cache in the user's home that many processes share.

A library is one file: the compiler's output followed by a seal (its SHA-256), written under another
name and renamed. A file whose seal does not fit, truncated or foreign, is built again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import InternalError, UnsupportedError

SEAL = b"fwgen-library-1:"
FLAGS = [
    "-march=native",
    "-std=c++17",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
]
STALE_SECONDS = 3600


def cache_folder() -> Path:
    """The folder of built libraries: `FWGEN_CACHE_DIR`, else `~/.cache/fwgen`."""
    given = os.environ.get("FWGEN_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fwgen"
    except RuntimeError as error:
        raise UnsupportedError(
            f"there is no home folder for built kernels ({error}); "
            "set FWGEN_CACHE_DIR to a folder that can be written"
        ) from None


def compiler() -> list[str]:
    """The command of the C++ compiler: `CXX`, else g++ or c++; UnsupportedError without one."""
    wanted = os.environ.get("CXX", "").strip()
    for command in [wanted] if wanted else ["g++", "c++"]:
        words = shlex.split(command)
        program = shutil.which(words[0])
        if program:
            return [program, *words[1:]]
    missing = f"the C++ compiler of CXX, {wanted!r}," if wanted else "a C++ compiler (g++)"
    raise UnsupportedError(
        f"{missing} was not found, and the CPU kernels are compiled on first use; "
        'install one, or pass backend="reference" for the slow PyTorch loop'
    )


@functools.cache
def processor() -> str:
    """What `-march=native` depends on: the architecture and the first processor's description."""
    text = platform.machine()
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
        for line in lines:
            if not line.strip():
                break
            if line.startswith(wanted):
                text += "\n" + line.strip()
    return text


def _flags(program: str, defines: Sequence[str]) -> list[str]:
    # With sizes left open, -O3 only multiplies the code: twice the time to build for no speed.
    fixed = any(define.startswith("FWGEN_SIZE") for define in defines)
    flags = [*FLAGS, "-O3" if fixed else "-O2", *(f"-D{define}" for define in defines)]
    if platform.machine() in ("x86_64", "AMD64"):
        flags.append("-mprefer-vector-width=512")
    if "clang" not in Path(program).name:
        # With GNU's unique symbols, static variables of inline functions would be shared by all
        # libraries of the process: other rules, other dtypes.
        flags.append("-fno-gnu-unique")
    return flags


def library_path(name: str, source: str, defines: Sequence[str]) -> Path:
    """Where the library of this source lies for this compiler and processor."""
    command = compiler()
    status = Path(command[0]).resolve().stat()
    identity = [*command, str(status.st_size), str(status.st_mtime_ns), processor()]
    parts = [source, *_flags(command[0], defines), *identity]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    return cache_folder() / f"{name}-{key}.so"


def load(name: str, source: str, defines: Sequence[str] = ()) -> ctypes.CDLL:
    """The library of a C++ source, built unless the cache holds it.

    Raises UnsupportedError without a compiler or a writable cache (naming `FWGEN_CACHE_DIR`), and
    InternalError where the compiler refuses the source or the system the library.
    """
    path = library_path(name, source, defines)
    if not _intact(path):
        _build(path, source, defines)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise InternalError(
            f"a built kernel could not be loaded from the cache ({error}); please report this. "
            "FWGEN_CACHE_DIR names another cache, for instance on a disk that allows execution"
        ) from None


def _intact(path: Path) -> bool:
    """Whether the file is complete and ours."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    end = len(content) - 32 - len(SEAL)
    if end <= 0 or content[end : end + len(SEAL)] != SEAL:
        return False
    return hashlib.sha256(content[:end]).digest() == content[-32:]


def _unwritable(folder: Path, why: object) -> UnsupportedError:
    return UnsupportedError(
        f"built kernels cannot be written to {folder} ({why}); "
        "set FWGEN_CACHE_DIR to a folder that can be written and has space"
    )


def _build(path: Path, source: str, defines: Sequence[str]) -> None:
    """Compile into a temporary file of the same folder, seal it, rename it."""
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_stale(folder)
        handle, name = tempfile.mkstemp(prefix=".building-", suffix=".so", dir=folder)
        os.close(handle)
    except OSError as error:
        raise _unwritable(folder, error) from None
    temporary = Path(name)
    try:
        _compile(temporary, source, defines)
        content = temporary.read_bytes()
        with temporary.open("ab") as file:
            file.write(SEAL + hashlib.sha256(content).digest())
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(folder, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def _compile(target: Path, source: str, defines: Sequence[str]) -> None:
    # The compiler's own temporary files go beside the library: one place that needs space.
    found = compiler()
    command = [*found, *_flags(found[0], defines), "-x", "c++", "-", "-o", str(target)]
    environment = {**os.environ, "TMPDIR": str(target.parent), "LC_ALL": "C"}
    run = subprocess.run(
        command,
        input=source,
        encoding="utf-8",
        errors="replace",
        capture_output=True,
        env=environment,
        check=False,
    )
    if run.returncode == 0:
        return
    disk = ("No space left", "Read-only file system", "Permission denied", "quota exceeded")
    if any(word in run.stderr for word in disk):
        raise OSError(run.stderr.strip().splitlines()[-1])
    raise InternalError(
        f"the C++ compiler refused a generated kernel (exit code {run.returncode}); please report "
        f"this with the rule and the following text.\n{shlex.join(command)}\n{run.stderr[-4000:]}"
    )


def _remove_stale(folder: Path) -> None:
    """Remove what builds that were killed have left behind."""
    horizon = time.time() - STALE_SECONDS
    for pattern in (".building-*", "cc*.s", "cc*.o"):
        for path in folder.glob(pattern):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < horizon:
                    path.unlink()
