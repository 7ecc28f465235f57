"""What a witness is: one step of a rule for one head, with names, dims and draws of its tensors.

Letters: x inputs of the token, p params and buffers of the head, s states before the token. A step
returns the output and the states after the token, and never writes into what it was given.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

Values = Mapping[str, Tensor]
Step = Callable[[Values, Values, Values], tuple[Tensor, dict[str, Tensor]]]

BASE_SIZES = {"K": 5, "V": 3, "D": 4, "M": 6, "R": 2, "J": 7, "N": 2}


@dataclass(frozen=True)
class Witness:
    """`inputs` is in the declared order; a dims text such as `V F` holds names, `` is a scalar.

    `derived` gives the sizes that follow from others, `draw` the distribution of each tensor (a key
    of `problems.DRAWS`, default `normal`), `start` the start values that are not 0, `learned` says
    that every state starts at a param of its name. `x["t"]` is the token's index.
    """

    name: str
    step: Step
    inputs: dict[str, str]
    states: dict[str, str]
    output: str
    params: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    derived: dict[str, Callable[[dict[str, int]], int]] = field(default_factory=dict)
    draw: dict[str, str] = field(default_factory=dict)
    start: dict[str, float] = field(default_factory=dict)
    learned: bool = False
    uses_position: bool = False

    def __str__(self) -> str:
        return self.name

    def sizes(self, **base: int) -> dict[str, int]:
        """Sizes of all dims; base dims differ from one another, so none stands in for another."""
        known = {**BASE_SIZES, **base}
        for name, rule in self.derived.items():
            known[name] = rule(known)
        return known

    def shape(self, dims: str, **base: int) -> list[int]:
        sizes = self.sizes(**base)
        return [sizes[name] for name in dims.split()]
