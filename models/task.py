"""What the training loop asks of a task."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .distributed import ALONE, World


class Task:
    """What the loop trains: a model, its data, its loss.

    A subclass sets the attributes and has `loss` and `evaluate`; `generators` are its own sources
    of random numbers. One that has more to remember than these (its place in the data, states that
    are carried) extends `state` and `load_state`.
    """

    model: nn.Module
    tokens_per_step: int  # of one `loss()`
    device: str = "cpu"
    # Of a task for several processes: which one this is, and what `loss` calls for the model: the
    # model, or it in a wrapper that averages the gradients. Its `loss` and `evaluate` compute the
    # rows of this process; the mean of the losses over the processes is the loss.
    world: World = ALONE
    spread: nn.Module | None = None
    generators: Mapping[str, torch.Generator]
    texts: Mapping[str, str] = {}  # what a checkpoint needs to be used alone: rule, tokenizer

    def loss(self) -> Tensor:
        """The loss on the next batch, a scalar."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Figures on held-out data; "loss" decides what is best and when to stop.

        A figure "solved" that is 1 stops the training whatever the loss.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """All that the next batch depends on besides the model."""
        return {f"generator.{n}": g.get_state() for n, g in self.generators.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave."""
        for name, generator in self.generators.items():
            generator.set_state(state[f"generator.{name}"])
