"""Memory of large results: kept between calls, never shared by two tensors that live."""

import gc
import io
import os
import pickle
import subprocess
import sys
import threading

import pytest
import torch

import fwgen
from fwgen.runtime import pages

CPU = torch.device("cpu")
LARGE = (3, 1 << 18)  # floats: 3 MB


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Every test starts without free blocks, and with room for them."""
    pages._returned.clear()
    pages._free.clear()
    monkeypatch.setattr(pages, "most_kept", lambda: 64 << 20)


def large(value: float) -> torch.Tensor:
    return pages.empty(LARGE, torch.float32, CPU).fill_(value)


def test_a_block_is_taken_again_once_its_tensor_is_gone():
    first = large(1)
    address = first.data_ptr()
    second = large(2)
    assert second.data_ptr() != address
    assert bool((first == 1).all())
    assert bool((second == 2).all())
    view = first[1]
    del first
    third = large(3)
    assert third.data_ptr() != address  # a view keeps it
    assert bool((view == 1).all())
    del view
    assert large(4).data_ptr() == address


def test_what_is_kept_has_a_bound():
    tensors = [large(n) for n in range(40)]
    assert sum(map(len, pages._free)) == 0
    del tensors
    kept = sum(map(len, pages._free))
    assert 32 << 20 < kept <= 64 << 20


def test_blocks_are_not_wasted_on_small_results():
    first = large(1)
    address = first.data_ptr()
    del first
    small = pages.empty((2, 1 << 18), torch.float32, CPU)
    assert small.data_ptr() != address
    assert small.untyped_storage().nbytes() == 2 << 20
    assert pages.empty((5,), torch.float32, CPU).untyped_storage().nbytes() == 20


def test_results_are_tensors_like_others():
    op = fwgen.compile("sum")
    q, k, v = (torch.randn(1, 4096, 2, 64, requires_grad=True) for _ in "qkv")
    y, _ = op(q, k, v)
    want = y.detach().clone()
    file = io.BytesIO()
    torch.save(y.detach(), file)
    file.seek(0)
    assert torch.equal(torch.load(file), want)
    assert torch.equal(pickle.loads(pickle.dumps(y.detach())), want)
    y.mul_(2).add_(1)
    assert torch.equal(y.detach(), want * 2 + 1)
    y.sum().backward()
    assert all(x.grad is not None and x.grad._base is None for x in (q, k, v))
    k.grad.zero_()
    shared = y.detach().share_memory_()
    assert torch.equal(shared, want * 2 + 1)
    assert torch.equal(torch.from_numpy(y.detach().numpy()), want * 2 + 1)


def test_threads_never_get_the_same_block():
    wrong = []

    def work(number: int) -> None:
        for turn in range(60):
            mine = large(number * 1000 + turn)
            if turn % 7 == 0:
                gc.collect()
            if not bool((mine == number * 1000 + turn).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_into_memory_of_its_own():
    mine = large(1)
    free = large(2)
    del free
    child = os.fork()
    if child == 0:
        mine.fill_(7)
        other = large(8)
        os._exit(0 if bool((other == 8).all()) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bool((mine == 1).all())
    assert bool((large(3) == 3).all())


@pytest.mark.parametrize(
    ("value", "found"), [("0", 0), ("16", 16 << 20), ("-1", None), ("x", None)]
)
def test_the_bound_is_read_from_the_environment(value, found):
    code = "from fwgen.runtime import pages; print(pages.most_kept())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FWGEN_KEEP_MB": value},
        capture_output=True,
        text=True,
    )
    if found is None:
        assert "FWGEN_KEEP_MB: expected a whole number of megabytes" in run.stderr
    else:
        assert int(run.stdout) == found
