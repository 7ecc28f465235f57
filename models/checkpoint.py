"""Checkpoints: one safetensors file that holds everything, replaced in one step.

Tensors are named `model.*`, `optimizer.*`, `random.*` and `task.*`; the metadata are texts: `run`
(JSON: what the run is and how far it got) and the task's own, such as the text of the rule and the
tokenizer. So a checkpoint can be used where neither the rule's file nor the data lies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import fwgen

from .distributed import gathered, parted_like

LAST, BEST = "checkpoint.safetensors", "best.safetensors"
FORMAT = "fwgen model 2"


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds."""

    path: Path
    tensors: dict[str, Tensor]
    texts: dict[str, str]  # metadata, without `run`
    run: dict[str, Any]

    def group(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below a prefix, without it."""
        start = prefix + "."
        return {n.removeprefix(start): t for n, t in self.tensors.items() if n.startswith(start)}


def write(
    path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str], run: Mapping[str, Any]
) -> None:
    """Write beside the file and rename: a kill leaves the old file or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    temporary = path.with_suffix(".tmp")
    save_file(own, temporary, {"format": FORMAT, "run": json.dumps(run), **texts})
    temporary.replace(path)


def read(path: Path, prefer: str = BEST) -> Checkpoint:
    """A checkpoint from its file or the run's folder, there `prefer` before the other one.

    Raises ArgumentError when there is none or the file is something else.
    """
    file = path
    if path.is_dir():
        names = [prefer, *(name for name in (BEST, LAST) if name != prefer)]
        found = [path / name for name in names if (path / name).is_file()]
        if not found:
            raise fwgen.ArgumentError(f"checkpoint: expected {' or '.join(names)} in {path}")
        file = found[0]
    elif not path.is_file():
        raise fwgen.ArgumentError(f"checkpoint: expected a file or a run's folder, found no {path}")
    try:
        with safe_open(file, framework="pt") as opened:
            texts = dict(opened.metadata() or {})
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise fwgen.ArgumentError(f"checkpoint: {file} is not a checkpoint: {error}") from None
    if (written := texts.pop("format", "")) != FORMAT:
        own = written.startswith(FORMAT[:-1])
        raise fwgen.ArgumentError(
            f"checkpoint: {file} was not written by "
            + ("this version of fwgen" if own else "fwgen train")
        )
    return Checkpoint(file, tensors, texts, json.loads(texts.pop("run")))


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All that a model has; of one that is parted among processes, put together by all of them."""
    return {f"model.{name}": gathered(tensor) for name, tensor in model.state_dict().items()}


def put_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give the tensors back, named without `model.`."""
    own = model.state_dict()
    found = {n: parted_like(t, own[n]) if n in own else t for n, t in tensors.items()}
    model.load_state_dict(found)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """As `model_tensors`, named by the number of the parameter."""
    slots = optimizer.state_dict()["state"]
    return {
        f"optimizer.{i}.{name}": gathered(t) for i, own in slots.items() for name, t in own.items()
    }


def put_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give the slots back; `tensors` are named `index.slot`."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, slot = key.split(".")
        parameter = parameters[int(index)]
        if tensor.shape == parameter.shape:  # the number of steps is one for all
            tensor = parted_like(tensor, parameter)
        state.setdefault(int(index), {})[slot] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
