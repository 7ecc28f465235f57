"""Fixtures for every test: uninitialised memory shows itself, thread counts come back."""

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def poisoned() -> Iterator[None]:
    """`torch.empty` gives NaN while the test runs, so that an unwritten element shows."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert bool(torch.empty(3).isnan().all()), "the poison does not work"
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the thread count for one test."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
