"""One builder at a time for each library, among threads and processes.

The lock belongs to an open file, so that the system takes it back whatever becomes of its owner.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None  # type: ignore[assignment]

PAUSE = 0.03


@contextlib.contextmanager
def exclusive(path: Path, patience: float) -> Iterator[None]:
    """Hold the lock file `path`, which is removed afterwards.

    After `patience` seconds, or where a file cannot be locked, work goes on without: the lock saves
    work and is not needed for what comes out.
    """
    handle = _acquire(path, time.monotonic() + patience)
    try:
        yield
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):
                path.unlink()
            # Unlocked by name: a process forked meanwhile has the open file too.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def _acquire(path: Path, end: float) -> int | None:
    """An open file that is locked and still has its name, or None."""
    while fcntl is not None:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            if not _lock(handle, end):
                os.close(handle)
                return None
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except FileNotFoundError:
            pass
        except OSError:
            os.close(handle)
            return None
        os.close(handle)  # its owner removed it when it was done: the next one has another file
    return None


def _lock(handle: int, end: float) -> bool:
    """Whether the lock was free before the end of our patience."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(PAUSE)
        else:
            return True
