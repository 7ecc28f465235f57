"""Many processes and threads over one cache, some of which die; forks, and spawned processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hand_delta import delta_signature, draw
from small_library import SOURCE, answer, counting_compiler, gone, place, script, wait_for

import fwgen
from fwgen.runtime import build, forks, locks
from fwgen.runtime.op import CompiledRule

pytestmark = pytest.mark.usefixtures("cache")

MANY = 16
# Waits for a file, so that all begin at once.
ANSWER = """
import pathlib, sys, time
from fwgen.runtime import build
print("ready", flush=True)
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.001)
print(build.load("answer", sys.argv[2], ["ANSWER=8"]).answer())
"""


def start(gate: Path, **options) -> subprocess.Popen[str]:
    """A process that builds the library for 8 when the gate opens."""
    words = [sys.executable, "-c", ANSWER, str(gate), SOURCE]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_processes_at_once(cache, tmp_path, monkeypatch):
    compiler, log = counting_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(compiler))
    gate = tmp_path / "gate"
    runs = [start(gate) for _ in range(MANY)]
    gate.touch()
    assert [run.communicate(timeout=300)[0].strip() for run in runs] == ["8"] * MANY
    assert len(log.read_text().splitlines()) == 1
    assert list(cache.iterdir()) == [place(8)]


def in_child(work, *arguments, start: str = "fork", seconds: float = 120):
    """The result of `work(*arguments)` in another process; fails when it does not come."""
    (result,) = in_children(1, work, *arguments, start=start, seconds=seconds)
    return result


def in_children(count: int, work, *arguments, start: str = "fork", seconds: float = 120) -> list:
    context = multiprocessing.get_context(start)
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    processes = [
        context.Process(target=_send, args=(pipe, work, arguments), daemon=True)
        for _, pipe in pipes
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + seconds
    try:
        results = []
        for receive, _ in pipes:
            assert receive.poll(max(0.0, end - time.monotonic())), "a child process hangs"
            results.append(receive.recv())
        return results
    finally:
        for process in processes:
            process.kill()
            process.join()


def _send(pipe, work, arguments) -> None:
    try:
        pipe.send(work(*arguments))
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")


def outcome(op: CompiledRule, tokens: int = 9) -> list[bytes]:
    """The bits of an output and of the gradients of a call with several tasks for threads."""
    inputs = draw(tokens, grad=True)
    y, _ = op(*inputs.values(), backend="cpu")
    y.square().sum().backward()
    tensors = [y.detach(), *(t.grad for t in inputs.values())]
    return [t.numpy().tobytes() for t in tensors]


def compiled_anew(sources) -> list[bytes]:
    return outcome(CompiledRule(delta_signature(), sources))


def test_operators_in_processes_at_once(cache, tmp_path, monkeypatch, sources, op):
    """The whole operator, forward and backward, 16 times from an empty cache."""
    compiler, log = counting_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(compiler))
    expected = outcome(op)
    assert in_children(MANY, compiled_anew, sources) == [expected] * MANY
    assert len(log.read_text().splitlines()) == 1 and len(list(cache.iterdir())) == 1


RULE = """\
name: in_threads
inputs: {k: K, v: V}
state: {W: [V, K]}
update: W = 0.5 * W + outer(v, k)
output: W @ k
"""


def test_threads_at_once(cache, tmp_path, monkeypatch):
    """Read, compiled, built and run by 16 threads together."""
    compiler, log = counting_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(fwgen, "_compiled", {})
    path = tmp_path / "in_threads.yaml"
    path.write_text(RULE)
    barrier = threading.Barrier(MANY)
    k, v = torch.randn(2, 5, 3, 4), torch.randn(2, 5, 3, 6)

    def work(_: int) -> bytes:
        barrier.wait(60)
        return fwgen.compile(path)(k, v)[0].numpy().tobytes()

    with ThreadPoolExecutor(MANY) as pool:
        found = set(pool.map(work, range(MANY)))
    assert found == {fwgen.compile(path)(k, v)[0].numpy().tobytes()}
    torch.testing.assert_close(fwgen.compile(path)(k, v)[0], fwgen.compile(path).reference(k, v)[0])
    assert len(log.read_text().splitlines()) == 1 and len(list(cache.iterdir())) == 1


def test_threads_with_operators_of_their_own(cache, tmp_path, monkeypatch, sources, op):
    compiler, log = counting_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(compiler))
    with ThreadPoolExecutor(MANY) as pool:
        found = list(pool.map(lambda _: compiled_anew(sources), range(MANY)))
    assert found == [outcome(op)] * MANY
    assert len(log.read_text().splitlines()) == 1


# ----------------------------------------------------------------- death in the middle of a build


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """A compiler that sleeps while a file says so; yields that file and where it notes itself."""
    hang, noted = tmp_path / "hang", tmp_path / "noted"
    lines = f'if [ -e {hang} ]; then echo $$ >> {noted}; exec sleep 600; fi\nexec g++ "$@"'
    monkeypatch.setenv("CXX", str(script(tmp_path / "stuck", lines)))
    hang.touch()
    yield hang, noted
    for process in noted.read_text().split() if noted.exists() else ():
        if not gone(int(process)):
            os.kill(int(process), signal.SIGKILL)


@pytest.mark.parametrize("waiting", [0, 2])
def test_builder_is_killed(cache, tmp_path, stuck, waiting):
    """kill -9 of the process that builds: whoever waits for it builds next, at once."""
    hang, noted = stuck
    gate = tmp_path / "gate"
    builder = start(gate)
    gate.touch()
    wait_for(noted.exists)
    others = [start(gate) for _ in range(waiting)]
    time.sleep(0.2)
    assert all(other.poll() is None for other in others)
    hang.unlink()
    builder.kill()
    builder.wait()
    begin = time.monotonic()
    assert answer(8) == 8
    assert time.monotonic() - begin < 30
    for other in others:
        assert other.communicate(timeout=30)[0].strip() == "8"
    (left,) = set(cache.iterdir()) - {place(8)}
    assert left.name.startswith(".building-")
    os.utime(left, (0, 0))
    assert answer(9) == 9 and set(cache.iterdir()) == {place(8), place(9)}


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2])
def test_builder_is_killed_at_some_moment(cache, tmp_path, delay):
    """With its compiler and all, wherever they are; what is left never passes for a library."""
    gate = tmp_path / "gate"
    builder = start(gate, process_group=0)
    gate.touch()
    time.sleep(delay)
    os.killpg(builder.pid, signal.SIGKILL)
    builder.wait()
    assert answer(8) == 8 and build._intact(place(8))
    left = {path.name[:5] for path in set(cache.iterdir()) - {place(8)}}
    assert left <= {".buil", ".lock"}


def test_builder_is_stopped(cache, tmp_path, stuck, monkeypatch):
    """A process that holds the lock and does nothing is waited for so long and no longer."""
    hang, noted = stuck
    gate = tmp_path / "gate"
    builder = start(gate)
    gate.touch()
    wait_for(noted.exists)
    builder.send_signal(signal.SIGSTOP)
    hang.unlink()
    monkeypatch.setattr(build, "LONGEST", 0.5)
    try:
        begin = time.monotonic()
        assert answer(8) == 8
        assert 0.5 <= time.monotonic() - begin < 30
    finally:
        builder.kill()
        builder.wait()


def test_interrupted_build_stops_its_compiler(cache, tmp_path, stuck):
    _, noted = stuck
    gate = tmp_path / "gate"
    builder = start(gate)
    gate.touch()
    wait_for(lambda: noted.exists() and bool(noted.read_text().strip()))
    builder.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in builder.communicate(timeout=30)[1]
    wait_for(lambda: gone(int(noted.read_text())))
    assert not list(cache.iterdir())


# ----------------------------------------------------------------- locks


def test_lock_excludes_and_leaves_nothing(tmp_path):
    path, inside, most = tmp_path / "lock", [0], [0]

    def work(_: int) -> None:
        with locks.exclusive(path, 60):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.002)
            inside[0] -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(40)))
    assert most == [1] and not path.exists()


def test_lock_does_not_live_on_in_a_child(tmp_path):
    """A process forked while the lock is held shares the open file, not the lock."""
    path = tmp_path / "lock"
    with locks.exclusive(path, 1):
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
    try:
        begin = time.monotonic()
        with locks.exclusive(path, 60):
            assert time.monotonic() - begin < 10
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("kind", ["no folder", "a folder", "no locks"])
def test_where_nothing_can_be_locked_work_goes_on(tmp_path, monkeypatch, kind):
    path = {"no folder": tmp_path / "none" / "lock", "a folder": tmp_path}.get(kind)
    if kind == "no locks":
        path = tmp_path / "lock"

        def refuse(*_: object) -> None:
            raise OSError(37, "No locks available")

        monkeypatch.setattr(locks.fcntl, "flock", refuse)
    done = []
    with locks.exclusive(path, 5):
        done.append(True)
    assert done


# ----------------------------------------------------------------- forks


def several_threads() -> int:
    return torch.get_num_threads()


def test_child_of_a_process_that_ran_kernels(op, threads):
    """Its parent's threads are not there, and nobody waits for them; both go on with their own."""
    threads(4)
    expected = outcome(op)
    for _ in range(3):
        assert in_child(outcome, op) == expected
        assert in_child(several_threads) == 4
        assert outcome(op) == expected
    assert torch.get_num_threads() == 4


def test_grandchild(op, threads):
    threads(3)
    expected = outcome(op)
    assert in_child(_forked_again, op) == expected


def _forked_again(op: CompiledRule) -> list[bytes]:
    mine, child = outcome(op), in_child_by_hand(op)
    assert mine == child
    return mine


def in_child_by_hand(op: CompiledRule) -> list[bytes]:
    """A daemonic process may not start another, so this one forks as the system does."""
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _send(send, outcome, (op,))
        os._exit(0)
    try:
        assert receive.poll(60), "a grandchild hangs"
        return receive.recv()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_child_that_loads_what_its_parent_did_not(op, sources, threads):
    """PyTorch alone had threads in the parent; the kernels come in the child."""
    threads(4)
    torch.randn(1 << 20).exp()
    assert in_child(compiled_anew, sources) == outcome(op)


def test_fork_beside_a_thread_that_builds(cache, stuck, sources, op):
    """Another thread holds every lock there is while this one forks."""
    hang, noted = stuck
    rule = CompiledRule(delta_signature(), sources)
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(outcome, rule)
        wait_for(noted.exists)
        hang.unlink()
        os.kill(int(noted.read_text()), signal.SIGSTOP)
        child = os.fork()
        if child == 0:
            os._exit(0 if _served(rule) else 1)
        os.kill(int(noted.read_text()), signal.SIGKILL)
        with pytest.raises(fwgen.UnsupportedError, match="signal 9"):
            building.result(60)
    wait_for(lambda: gone(child))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _served(rule: CompiledRule) -> bool:
    return bool(outcome(rule))


def test_no_fork_while_another_thread_starts_the_compiler():
    """The child would hold the pipe open by which that thread is told that the compiler runs."""
    order: list[str] = []
    begun = threading.Event()

    def start_slowly() -> None:
        with forks.starting:
            begun.set()
            time.sleep(0.2)
            order.append("started")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(start_slowly)
        begun.wait()
        child = os.fork()
        if child == 0:
            os._exit(0 if forks.starting.acquire(blocking=False) else 1)
        order.append("forked")
    assert order == ["started", "forked"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_fork_beside_a_thread_that_compiles(tmp_path, monkeypatch):
    """The lock of the compiler is free in the child."""
    path = tmp_path / "in_threads.yaml"
    path.write_text(RULE.replace("0.5", "0.25"))
    monkeypatch.setattr(fwgen, "_compiled", {})
    with fwgen._compiling:
        forms = in_child(_forms, path)
    assert forms == fwgen.compile(path).forms


def _forms(path: Path) -> tuple[str, ...]:
    return fwgen.compile(path).forms


def test_process_started_anew(cache, op):
    """spawn: the operator travels by pickle, the library comes from the cache or is built."""
    assert in_child(outcome, op, start="spawn") == outcome(op)
    assert len(list(cache.iterdir())) == 1
