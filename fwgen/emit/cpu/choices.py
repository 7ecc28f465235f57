"""Conditions around the phases of a kernel: those that nobody's result needs are left out."""

from __future__ import annotations

from collections.abc import Mapping

from fwgen.emit.cpu.names import Names
from fwgen.emit.cpu.views import Choice
from fwgen.schedule.needs import needs, results
from fwgen.schedule.plan import Kernel


class Choices:
    """Names the conditions of a kernel's phases; `tensors` gives the slot of each tensor name.

    What every result needs has no condition, and a kernel that makes the output has none at all.
    """

    def __init__(self, kernel: Kernel, tensors: Mapping[str, int], names: Names) -> None:
        self.tensors, self.names = tensors, names
        self.needs, self.all = needs(kernel), frozenset(results(kernel))
        self.found: dict[frozenset[str], Choice] = {}

    def sweep(self, number: int) -> tuple[str, tuple[str, ...]]:
        """The condition of a sweep, and those that its phases add; "" for none."""
        phases = self.needs[number]
        whole = frozenset[str]().union(*phases)
        return self.name(whole), tuple("" if p == whole else self.name(p) for p in phases)

    def name(self, results: frozenset[str]) -> str:
        """The condition that one of some results is wanted."""
        if results == self.all or "y" in self.all or not results:
            return ""
        choice = self.found.get(results)
        if choice is None:
            number = len(self.found) + 1
            slots = sorted(self.tensors[tensor] for tensor in results)
            choice = self.found[results] = Choice(
                self.names.of(("choice", number), f"wanted_{number}"),
                " || ".join(f"call.tensor({slot}).data" for slot in slots),
                ", ".join(_readable(t) for t in sorted(results, key=self.tensors.__getitem__)),
            )
        return choice.name


def _readable(tensor: str) -> str:
    """`grad k` is k's, `grad_state W` that of W's start."""
    kind, _, name = tensor.partition(" ")
    return f"the start of {name}" if kind == "grad_state" else name
