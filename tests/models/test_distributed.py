"""Several processes train as one does, and go on where one or several have stopped.

The processes are those of torchrun over gloo; `processes.py` has what they run.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import AUSTEN, CASES, SAVED, STEPS, CutError, cut
from processes import train as train_here

import fwgen
from fwgen.models import checkpoint, lm_task
from fwgen.models.distributed import ALONE, World, put_random, random_states
from fwgen.models.lm_eval import load
from fwgen.models.settings import TrainConfig
from fwgen.models.task import Task
from fwgen.models.train import train

HERE = Path(__file__).parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SAMPLE = ["lm-deltanet", "lm-redrawn", "lm-deltanet-fsdp", "nmt-memory"]
RESUMED = ["lm-deltanet", "nmt-softmax"]  # by two and by one
OTHERS = [name for name in CASES if name not in SAMPLE and name != "lm-dropout"]


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


def torchrun(*command, fine=True):
    """What it printed; at most two minutes, so what hangs fails."""
    done = subprocess.run(
        [*TORCHRUN, *map(str, command)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode == 0) == fine, done.stderr
    return done.stdout + done.stderr


def two(folder, *names, fine=True):
    return torchrun(HERE / "processes.py", folder, *names, fine=fine)


def found(folder, name):
    document = json.loads(Path(folder, f"{name}.json").read_text())
    return {int(step): loss for step, loss in document["losses"].items()}, document["result"]


def expect_same_training(one, other, first=1):
    """Losses of the steps from `first` on and all evaluations, but for the order of sums."""
    (losses, result), (other_losses, other_result) = one, other
    assert sorted(other_losses) == list(range(first, STEPS + 1))
    assert other_losses == pytest.approx({s: x for s, x in losses.items() if s >= first}, rel=2e-6)
    assert len(result["history"]) == len(other_result["history"]) > 0
    for row, other_row in zip(result["history"], other_result["history"], strict=True):
        assert other_row == pytest.approx(row, rel=1e-5)


def expect_same_checkpoint(folder, other):
    """Weights, optimiser, carried states and the place in the data; dropout has its own."""
    mine, theirs = (
        {n: t for n, t in tensors.items() if not n.startswith("random.")}
        for tensors in (checkpoint.read(f, checkpoint.LAST).tensors for f in (folder, other))
    )
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=2e-5, msg=name)


def left_by_one(name, out):
    with pytest.raises(CutError):
        train_here(name, out, on_step=cut)


# --- torchrun


def test_two_processes_train_as_one_and_go_on_where_one_stopped_and_the_reverse(tmp_path):
    """Shares of unequal size or none, accumulation, clipping, carried states, redrawn features."""
    names = dict.fromkeys([*SAMPLE, *RESUMED])
    whole = {name: train_here(name, tmp_path / "one" / name) for name in names}
    for name in RESUMED:
        left_by_one(name, tmp_path / f"{name}-resume")
    dropout = ["lm-dropout", "lm-dropout:cut", "lm-dropout:again"]
    cuts, resumed = ([f"{name}:{what}" for name in RESUMED] for what in ("cut", "resume"))
    two(tmp_path, *SAMPLE, *cuts, *resumed, *dropout)
    for name in SAMPLE:
        expect_same_training(whole[name], found(tmp_path, name))
        expect_same_checkpoint(tmp_path / "one" / name, tmp_path / name)
    for name in RESUMED:
        expect_same_training(whole[name], found(tmp_path, f"{name}:resume"), SAVED + 1)
        rest = train_here(name, tmp_path / f"{name}-cut", resume=True)
        expect_same_training(whole[name], rest, SAVED + 1)
    # Two that go on as two repeat every bit, each with its own dropout.
    (losses, result), (rest, other) = (found(tmp_path, f"lm-dropout{x}") for x in ("", ":again"))
    assert rest == {step: loss for step, loss in losses.items() if step > SAVED}
    assert other["history"] == result["history"]
    # The parted weights were put together for the checkpoint.
    assert (
        load(tmp_path / "lm-deltanet-fsdp").step
        == found(tmp_path, "lm-deltanet-fsdp")[1]["best_step"]
    )


def test_a_process_that_fails_ends_the_run_and_says_so(tmp_path):
    """The other one waits for gradients; `torchrun` would give up after two minutes only."""
    shown = two(tmp_path, "lm-deltanet:fail", fine=False)
    assert "ValueError: the second process is broken" in shown
    assert "another process of this run has ended" in shown
    assert not (tmp_path / "lm-deltanet-fail" / "results.json").exists()


@pytest.mark.slow
def test_a_killed_process_ends_the_run(tmp_path):
    shown = two(tmp_path, "lm-deltanet:die", fine=False)
    assert "SIGKILL" in shown
    assert "another process of this run has ended" in shown


@pytest.mark.slow
def test_all_stop_at_the_step_in_which_one_was_asked_to(tmp_path):
    whole = train_here("lm-deltanet", None)
    two(tmp_path, "lm-deltanet:interrupt")
    losses, result = found(tmp_path, "lm-deltanet:interrupt")
    assert (len(losses), result["stopped"]) == (5, "interrupted")
    rest = train_here("lm-deltanet", tmp_path / "lm-deltanet-interrupt", resume=True)
    expect_same_training(whole, rest, 6)


@pytest.mark.slow
def test_other_rules_and_parted_weights_train_as_in_one_process(tmp_path):
    resumed = ["lm-recurrent-fsdp", "nmt-memory-fsdp"]
    for name in resumed:
        left_by_one(name, tmp_path / f"{name}-resume")
    cuts, goes_on = ([f"{name}:{what}" for name in resumed] for what in ("cut", "resume"))
    two(tmp_path, *OTHERS, *cuts, *goes_on)
    for name in OTHERS:
        whole = train_here(name, tmp_path / "one" / name)
        expect_same_training(whole, found(tmp_path, name))
        expect_same_checkpoint(tmp_path / "one" / name, tmp_path / name)
        if name in resumed:
            expect_same_training(whole, found(tmp_path, f"{name}:resume"), SAVED + 1)
            rest = train_here(name, tmp_path / f"{name}-cut", resume=True)
            expect_same_training(whole, rest, SAVED + 1)


@pytest.mark.slow
def test_the_commands(tmp_path):
    """One process prints and writes; the checkpoint serves one process alone."""
    options = ("--data", AUSTEN, "--preset", "tiny", "--steps", 2, "--eval-every", 2)
    command = ("-m", "fwgen", "train", "lm", *options, "--no-tensorboard", "--out", tmp_path / "lm")
    shown = torchrun(*command)
    assert shown.count("delta: 2 steps (steps)") == 1
    assert load(tmp_path / "lm").step == 2
    again = torchrun(*command, fine=False)
    for process in (0, 1):
        assert f"fwgen: error (process {process} of 2): out: {tmp_path / 'lm'} holds a run" in again
    command = ("-m", "fwgen", "train", "formal", "--language", "parity", "--out", tmp_path / "p")
    assert "formal: expected one process, torchrun has started 2" in torchrun(*command, fine=False)


# --- without processes


@pytest.mark.parametrize(("count", "size"), [(5, 2), (7, 3), (3, 3), (2, 5), (1, 2)])
def test_every_row_counts_once(count, size):
    shares = [World(rank, size).share(count) for rank in range(size)]
    counted = [row for rows, counts in shares if counts for row in range(count)[rows]]
    assert counted == list(range(count))
    assert all(range(count)[rows] for rows, _ in shares)  # nobody is without a row


def test_one_process_is_a_world_of_its_own():
    x = torch.arange(6.0)
    assert torch.equal(ALONE.whole(x, 6), x)
    assert (ALONE.rows(4), ALONE.share(4)) == (slice(0, 4), (slice(0, 4), 1))
    assert (ALONE.total(0.5), ALONE.gather("x"), ALONE.from_first(lambda: 3)) == (0.5, ["x"], 3)


def test_random_states_go_on_and_a_new_process_has_its_own():
    torch.manual_seed(3)
    states = random_states(ALONE)
    want = torch.rand(4)
    drawn = []
    for rank in range(3):
        put_random(states, World(rank, 3))
        drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], want)
    assert len({tuple(x.tolist()) for x in drawn}) == 3
    put_random(states | {"2.cpu": states["cpu"]}, World(2, 3))
    assert torch.equal(torch.rand(4), want)


class Line(Task):
    """A task that knows nothing of processes."""

    def __init__(self):
        self.model = torch.nn.Linear(1, 1)
        self.tokens_per_step, self.generators = 1, {}


def test_a_task_for_one_process_is_refused_under_torchrun(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(fwgen.ArgumentError, match="line: expected one process, torchrun has"):
        train(Line(), TrainConfig(), {"task": "line", "name": "line"})


def test_parted_weights_need_processes():
    with pytest.raises(fwgen.ArgumentError, match="fsdp: expected processes that torchrun"):
        train(Line(), TrainConfig(), {"task": "line", "name": "line"}, fsdp=True)


def test_a_process_without_a_row_is_refused(monkeypatch):
    preset = CASES["lm-deltanet"][0]
    monkeypatch.setattr(lm_task, "current", lambda: World(0, 6))
    with pytest.raises(fwgen.ArgumentError, match="batch: expected at least 6, got 5"):
        lm_task.LMTask(AUSTEN, preset.model, preset.run)
