"""Memory of large results, whose pages are kept for the results of later calls.

Fresh memory costs a page fault for every 4 KB: at the sizes of training as much time as the kernels
take. The allocator of PyTorch's CPU tensors gives large blocks back to the system as soon as they
are free, and so pays it in every step. Blocks from here are taken again instead. Free ones add up
to `FWGEN_KEEP_MB` at most (a sixteenth of the machine's memory if it is not set; 0 keeps none).
"""

from __future__ import annotations

import collections
import ctypes
import functools
import itertools
import math
import mmap
import os
import weakref
from collections.abc import Sequence

import torch

from ..errors import ArgumentError
from .forks import Lock

SMALLEST = 1 << 20
"""Bytes; smaller results stay with PyTorch's allocator, which does not give them back."""
WASTE = 1.25
"""How much larger than what is asked for a block may be."""
STARTS = tuple(64 + 256 * n for n in (4, 2, 6, 1, 5, 3, 7))
"""Where results begin in their blocks, in turn: rows whose addresses agree modulo 2 KB push each
other out of the cache. PyTorch's large tensors begin at 64; the first ones lie furthest apart."""


class _Block(mmap.mmap):
    """Memory of a result, which begins at `start`."""

    start: int


_starts = itertools.cycle(STARTS)
_free: list[_Block] = []
_returned: collections.deque[_Block] = collections.deque()
_lock = Lock()


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Like `torch.empty` on a CPU."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < SMALLEST or not most_kept() or _poisoned():
        return torch.empty(shape, dtype=dtype, device=device)
    block = _taken(size + max(STARTS))
    memory = (ctypes.c_char * size).from_buffer(block, block.start)
    weakref.finalize(memory, _give, block).atexit = False
    storage = torch.frombuffer(memory, dtype=dtype).untyped_storage()
    # No view of another tensor, which autograd would not let anybody change in place.
    result = torch.empty(0, dtype=dtype)
    result.set_(storage, 0, shape)  # type: ignore[call-overload]
    return result


@functools.cache
def most_kept() -> int:
    """Bytes of free blocks that are kept at most; ArgumentError for a bad `FWGEN_KEEP_MB`."""
    text = os.environ.get("FWGEN_KEEP_MB", "").strip()
    if text and not text.isdecimal():
        raise ArgumentError(f"FWGEN_KEEP_MB: expected a whole number of megabytes, found {text!r}")
    if text:
        return int(text) << 20
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16


def _poisoned() -> bool:
    """Whether PyTorch was asked to fill what it allocates, which finds elements left unwritten."""
    filled: bool = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    return filled and torch.are_deterministic_algorithms_enabled()


def _taken(size: int) -> _Block:
    """The smallest free block that will do, or a new one."""
    with _lock:
        _collect()
        fits = [n for n, block in enumerate(_free) if size <= len(block) <= size * WASTE]
        if fits:
            return _free.pop(min(fits, key=lambda n: len(_free[n])))
        start = next(_starts)
    block = _Block(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.start = start
    return block


def _give(block: _Block) -> None:
    """Keep a block whose tensor is gone, now or at the next call; the oldest ones go.

    A collection of garbage may end a tensor at any moment, also while the list is in use.
    """
    _returned.append(block)
    if _lock.acquire(blocking=False):
        try:
            _collect()
        finally:
            _lock.release()


def _collect() -> None:
    """Take what came back into the list, as far as it may be kept."""
    while _returned:
        _free.append(_returned.popleft())
    while sum(map(len, _free)) > most_kept():
        del _free[0]
