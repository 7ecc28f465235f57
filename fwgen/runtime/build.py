"""C++ source -> loaded library, through a cache in the user's home that many processes share.

A library is one file: the compiler's output followed by a seal, the SHA-256 of it and of the file's
name, which holds the key. It is written in a folder of its own and renamed. A file whose seal does
not fit, truncated, foreign or another library under this name, is built again.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import UnsupportedError
from .compiler import LONGEST, REMEDY, compile_library, find_compiler
from .flags import chosen_isa, compile_flags, processor
from .forks import watch
from .locks import exclusive

SEAL = b"fwgen-library-2:"
STALE_SECONDS = 3600


def cache_folder() -> Path:
    """The folder of built libraries: `FWGEN_CACHE_DIR`, else `~/.cache/fwgen`."""
    given = os.environ.get("FWGEN_CACHE_DIR")
    try:
        if given:
            return Path(given).expanduser().absolute()
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return home.absolute() / "fwgen"
    except RuntimeError as error:
        raise UnsupportedError(
            f"there is no home folder for built kernels ({error}); "
            "set FWGEN_CACHE_DIR to a folder that can be written"
        ) from None


def compiler_command(defines: Sequence[str] = ()) -> list[str]:
    """How a library is compiled: compiler and flags, those of `FWGEN_ISA` included."""
    found = find_compiler()
    return [*found, *compile_flags(found[0], defines, chosen_isa())]


def library_path(name: str, source: str, command: Sequence[str]) -> Path:
    """Where the library of this source lies for this compiler, with its flags, and processor."""
    try:
        status = Path(command[0]).resolve().stat()
    except OSError as error:
        raise UnsupportedError(f"the C++ compiler does not run: {error}; {REMEDY}") from None
    identity = [*command, str(status.st_size), str(status.st_mtime_ns), processor()]
    key = hashlib.sha256(
        "\0".join([source, *identity]).encode(errors="surrogateescape")
    ).hexdigest()
    return cache_folder() / f"{name}-{key[:24]}.so"


def load(
    name: str, source: str, defines: Sequence[str] = (), parts: Sequence[str] = ()
) -> ctypes.CDLL:
    """The library of a C++ source, built unless the cache holds it.

    `parts` are macros each of which leaves out what another part of the library holds: the parts
    are compiled beside each other.

    Raises UnsupportedError without a working compiler or a writable cache (naming
    `FWGEN_CACHE_DIR`), InternalError where the compiler refuses the source, and what `chosen_isa`
    raises.
    """
    words = compiler_command(defines)
    path = library_path(name, source, words)
    if not _intact(path):
        _provide(path, source, words, parts)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        # What cannot be loaded once will not be loaded later: the next call builds it anew.
        with contextlib.suppress(OSError):
            path.unlink()
        raise UnsupportedError(
            f"a built kernel cannot be loaded ({error}); FWGEN_CACHE_DIR names another cache, for "
            f"instance on a disk that allows execution, and CXX another compiler than {words[0]}"
        ) from None
    watch(library)
    return library


def _seal(path: Path, content: bytes) -> bytes:
    """What stands behind the content of a library of that name."""
    return SEAL + hashlib.sha256(path.name.encode() + b"\0" + content).digest()


def _intact(path: Path) -> bool:
    """Whether the file is complete, ours, and the library that its name says."""
    try:
        content = path.read_bytes() if path.is_file() else b""
    except OSError:
        return False
    end = len(content) - len(SEAL) - 32
    return end > 0 and content[end:] == _seal(path, content[:end])


def _unwritable(folder: Path, why: object) -> UnsupportedError:
    return UnsupportedError(
        f"built kernels cannot be written to {folder} ({why}); "
        "set FWGEN_CACHE_DIR to a folder that can be written and has space"
    )


def _provide(path: Path, source: str, command: Sequence[str], parts: Sequence[str] = ()) -> None:
    """Build the library, or wait for the thread or process that does."""
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_stale(folder)
        with exclusive(folder / f".lock-{path.stem}", LONGEST):
            if not _intact(path):
                _build(path, source, command, parts)
    except OSError as error:
        raise _unwritable(folder, error) from None


def _build(path: Path, source: str, command: Sequence[str], parts: Sequence[str] = ()) -> None:
    """Compile in a folder of its own beside the library, seal it, rename it."""
    workshop = Path(tempfile.mkdtemp(prefix=".building-", dir=path.parent))
    try:
        made = compile_library(command, source, workshop, parts)
        content = made.read_bytes()
        with made.open("ab") as file:
            file.write(_seal(path, content))
        made.replace(path)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Remove what builds that were killed have left behind."""
    horizon = time.time() - STALE_SECONDS
    for path in (*folder.glob(".building-*"), *folder.glob(".lock-*")):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime >= horizon:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
