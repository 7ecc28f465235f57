"""Several processes that train one model: whose rows are whose, and what they tell each other.

`torchrun --nproc-per-node 2 -m fwgen train lm ...` starts as many processes as are asked for. They
hold the same model and the same settings, each computes its share of the rows of every batch, and
the gradients are averaged: the losses are those of one process but for rounding. The first process
alone prints and writes. Everything here is also right for one process, where it does nothing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import fwgen

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process among all of them. Methods that exchange something must be called by all."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """The rows of this process among `count`, adjoining, as evenly as they go."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def share(self, count: int) -> tuple[slice, int]:
        """`rows` and 1; where none is left, the first row and 0, by which its results count.

        All processes have to take part in what a model exchanges, with some row.
        """
        rows = self.rows(count)
        return (rows, 1) if rows.start < rows.stop else (slice(0, 1), 0)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over the processes."""
        if self.size > 1:
            x = x.to(_wire(), copy=True)
            dist.all_reduce(x)
        return x

    def total(self, value: float) -> float:
        """The sum of a number, the same bits in every process."""
        return float(self.sum(torch.tensor(value, dtype=torch.float64))) if self.size > 1 else value

    def whole(self, own: Tensor, count: int) -> Tensor:
        """All `count` rows, of which each process has its `rows`: [own, ...] -> [count, ...]."""
        if self.size == 1:
            return own
        every = own.new_zeros(count, *own.shape[1:])
        every[self.rows(count)] = own
        return self.sum(every)

    def gather(self, own: T) -> list[T]:
        """What each process has."""
        if self.size == 1:
            return [own]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, own)
        return found

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` gives in the first process; an error there is raised in all."""
        if self.size == 1:
            return make()
        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = make()
            except (fwgen.ArgumentError, fwgen.UnsupportedError, OSError) as error:
                box[1] = error
        dist.broadcast_object_list(box)
        if box[1] is not None:
            raise box[1]
        return box[0]  # type: ignore[no-any-return]


ALONE = World()


def current() -> World:
    """The processes that this one has joined."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return ALONE


def launched() -> int:
    """How many processes torchrun has started, this one among them; 0 without it."""
    return int(os.environ.get("WORLD_SIZE", 0)) if "RANK" in os.environ else 0


@contextmanager
def joined(device: str) -> Iterator[World]:
    """Join the processes that torchrun has started: over NCCL on GPUs, else over gloo.

    Every process takes the GPU of its local rank. When another process ends early, this one does
    too: with a ConnectionError, or by torchrun's signal where it cannot notice.
    """
    if not launched():
        yield ALONE
        return
    gpu = torch.device(device).type == "cuda"
    if gpu:
        torch.cuda.set_device(_own_gpu())
    dist.init_process_group("nccl" if gpu else "gloo")
    try:
        yield current()
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
            raise ConnectionError("another process of this run has ended, see there") from error
        raise
    dist.destroy_process_group()  # after an error the others may not answer: then it is left


def _own_gpu() -> int:
    local, here = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if local >= here:
        raise fwgen.ArgumentError(
            f"device: process {local} of this machine needs a GPU of its own, there are {here}"
        )
    return local


def _wire() -> torch.device:
    """Where tensors lie that are exchanged."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


# --- models


def spread(model: nn.Module, world: World, fsdp: bool) -> nn.Module:
    """What a training step calls: it averages the gradients over the processes.

    With `fsdp` the weights themselves are parted: `model` is changed in place, each of its
    `units()` is put together when it is needed. An optimiser must be made after that.
    """
    if fsdp:
        return _parted(model, world)
    if world.size == 1:
        return model
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def _parted(model: nn.Module, world: World) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    if not (dist.is_available() and dist.is_initialized()):
        raise fwgen.ArgumentError("fsdp: expected processes that torchrun has started, found none")
    # Results that are views could lose hooks if they were changed in place: no task does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    mesh = init_device_mesh(_wire().type, (world.size,))
    for unit, methods in model.units():  # type: ignore[operator]
        fully_shard(unit, mesh=mesh)
        for method in methods:
            register_fsdp_forward_method(unit, method)
    fully_shard(model, mesh=mesh)
    return model


def unsynced(model: nn.Module) -> AbstractContextManager[None]:
    """Where a step has more batches to come, gradients need not be averaged yet."""
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


def same_everywhere(x: Tensor) -> None:
    """Replace a tensor by that of the first process, where there are several."""
    if current().size > 1:
        dist.broadcast(x, 0)


def gathered(x: Tensor) -> Tensor:
    """The whole of a tensor that `fsdp` has parted, any other as it is."""
    whole = getattr(x, "full_tensor", None)
    return x if whole is None else whole()


def parted_like(x: Tensor, other: Tensor) -> Tensor:
    """The inverse of `gathered`: this process's part, if `other` is parted."""
    if not hasattr(other, "full_tensor"):
        return x
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(other, DTensor)
    mesh, places = other.device_mesh, other.placements
    return distribute_tensor(x.to(other.device), mesh, places, src_data_rank=None)


def random_apart(world: World) -> None:
    """Let each process draw other dropout; the first one draws what one process would draw."""
    if not world.first:
        torch.manual_seed(int(torch.randint(2**62, ())) + world.rank)


def random_states(world: World) -> dict[str, Tensor]:
    """The states of all processes: `cpu` of the first one, `1.cpu` of the second, ..."""
    own = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        own["cuda"] = torch.cuda.get_rng_state()
    every = enumerate(world.gather(own))
    return {_of(rank, name): state for rank, states in every for name, state in states.items()}


def put_random(states: Mapping[str, Tensor], world: World) -> None:
    """Put back what `random_states` gave; a process that is new gets a state of its own."""
    rank = world.rank if _of(world.rank, "cpu") in states else 0
    torch.set_rng_state(states[_of(rank, "cpu")])
    if _of(rank, "cuda") in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[_of(rank, "cuda")])
    if rank != world.rank:
        random_apart(world)


def _of(rank: int, name: str) -> str:
    return f"{rank}.{name}" if rank else name
