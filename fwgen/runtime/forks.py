"""What a fork leaves behind: a child has the thread that forked and no other.

OpenMP would wait in the child for the threads of its parent, so they are ended before; both start
new ones when they need them. A lock that another thread held would stay locked. And a child made
while another thread starts a program keeps the pipe open that tells that thread that the program
runs: it would wait for the end of the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

SOFT = 1  # omp_pause_soft
starting = threading.Lock()
"""Held while a program is started: nothing forks meanwhile."""
_pauses: dict[int | None, Callable[[int], int]] = {}


def watch(library: Any) -> None:
    """End the threads of the OpenMP that a library uses before this process forks.

    Does nothing for an OpenMP without `omp_pause_resource_all` (before version 5.0).
    """
    with contextlib.suppress(AttributeError):
        pause = library.omp_pause_resource_all
        _pauses[ctypes.cast(pause, ctypes.c_void_p).value] = pause


def _end_threads() -> None:
    watch(ctypes.CDLL(None))  # PyTorch's, which may have run before any kernel
    for pause in _pauses.values():
        pause(SOFT)


class Lock:
    """A lock for `with` that a forked child finds open, whoever held it in the parent."""

    def __init__(self) -> None:
        self._renew()
        _after_fork(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True) -> bool:
        """As `threading.Lock` does."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """As `threading.Lock` does."""
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _after_fork(renew: Callable[[], None]) -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_threads)
    os.register_at_fork(
        before=starting.acquire,
        after_in_parent=starting.release,
        after_in_child=starting.release,
    )
