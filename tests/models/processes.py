"""What each process of `test_distributed.py` runs: trainings by name, their losses as JSON.

    torchrun ... processes.py FOLDER NAME...    # FOLDER/NAME.json, and a folder with the run

`CASES` has the trainings; `train` runs one in any number of processes.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch

from fwgen.models import lm_task, nmt_task
from fwgen.models.distributed import current, joined
from fwgen.models.mixer import AttentionConfig

AUSTEN = Path(__file__).parent / "data" / "austen.txt"
STEPS, SAVED = 8, 4  # of a run; at which there is a checkpoint


def lm(rule, batch=5, dropout=0.0, **attention):
    """Five rows, so that two processes have different shares; a pass over the text is short."""
    preset = lm_task.PRESETS["tiny"]
    mixer = AttentionConfig(rule, heads=2, sizes={"M": 6}, short_conv=2, **attention)
    model = replace(preset.model, d_model=16, d_ff=32, dropout=dropout, attention=mixer)
    run = lm_task.LMRunConfig("bytes", batch=batch, segment=16, eval_batch=3, eval_tokens=400)
    settings = {"steps": STEPS, "warmup": 3, "eval_every": SAVED, "checkpoint_every": SAVED}
    training = replace(preset.training, accumulate=2, clip=0.5, **settings)
    return lm_task.Preset(model, run, training)


def nmt(dropout=0.0, batch_tokens=110, **parts):
    """Some batches of so few tokens have one sentence: a process without any takes part."""
    preset = nmt_task.PRESETS["tiny"]
    parts = {name: AttentionConfig(rule, heads=2, sizes={"M": 6}) for name, rule in parts.items()}
    model = replace(preset.model, d_model=16, d_ff=32, dropout=dropout, **parts)
    settings = {"steps": STEPS, "warmup": 3, "eval_every": STEPS, "checkpoint_every": SAVED}
    run = replace(preset.run, tokenizer="bytes", batch_tokens=batch_tokens)
    return nmt_task.Preset(model, run, replace(preset.training, clip=0.5, **settings))


# Name -> preset, options of `train`.
CASES = {
    "lm-deltanet": (lm("deltanet"), {}),
    "lm-deltanet-fsdp": (lm("deltanet"), {"fsdp": True}),
    "lm-redrawn": (lm("performer", redraw=1, redraw_in_eval=True), {}),
    "lm-learned-start": (lm("srwm"), {}),
    "lm-softmax": (lm("softmax"), {}),
    "lm-recurrent-fsdp": (lm("recurrent_delta"), {"fsdp": True}),
    "lm-dropout": (lm("deltanet", dropout=0.3), {}),
    "nmt-softmax": (nmt(), {}),
    "nmt-memory": (nmt(encoder="linear_attention", cross="deltanet", attention="gated_delta"), {}),
    "nmt-memory-fsdp": (
        nmt(encoder="performer", cross="deltanet", attention="sum"),
        {"fsdp": True},
    ),
}


def train(name, out, *, on_step=None, **options):
    """Losses by step, and what `results.json` holds."""
    preset, own = CASES[name]
    if current().size == 1:
        own = {key: value for key, value in own.items() if key != "fsdp"}
    task, data = (lm_task, AUSTEN) if name.startswith("lm") else (nmt_task, Path("numbers"))
    losses = {}

    def note(step, loss):
        losses[step] = loss
        if on_step:
            on_step(step)

    result = task.run(data, preset, out, on_step=note, **own, **options)
    return losses, result


class CutError(Exception):
    """Stands for a kill of all processes: nothing is saved on the way out."""


def cut(step):
    if step == SAVED + 2:
        raise CutError


def fail(step):
    if step == 3 and current().rank == 1:
        raise ValueError("the second process is broken")


def die(step):
    if step == 3 and current().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def interrupt(step):
    """One process alone gets the signal; all stop at the same step."""
    if step == 5 and current().rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)


HOOKS = {"cut": cut, "fail": fail, "die": die, "interrupt": interrupt}


def run_one(folder, name, world):
    """`case`, `case:hook`, `case:resume` of what lies there, or `case:again` of what was cut."""
    case, _, what = name.partition(":")
    out = Path(folder, f"{case}-{'cut' if what == 'again' else what}".rstrip("-"))
    resume = what in ("resume", "again")
    try:
        losses, result = train(case, out, on_step=HOOKS.get(what), resume=resume)
    except CutError:
        return
    every = world.gather(losses)
    assert all(own == losses for own in every), f"{name}: the processes had different losses"
    if world.first:
        document = json.dumps({"losses": losses, "result": result})
        Path(folder, f"{name}.json").write_text(document, encoding="utf-8")


def main(folder, *names):
    torch.set_num_threads(1)
    with joined("cpu") as world:
        for name in names:
            run_one(folder, name, world)


if __name__ == "__main__":
    main(*sys.argv[1:])
