"""Gradients that a report prints, beside differences of the forward that it prints."""

from __future__ import annotations

import numpy as np

from fwgen.commands.report import report_text
from fwgen.driver import Compilation
from fwgen.ir.nodes import Array
from report.printed import Frozen, Number, Page, Values, exact, numbers, paragraphs

FLOOR = 1e-30
"""What roundings may come to, of the loss and its weights; it counts where a gradient is 0."""
CONSTANTS = 1e-16
"""The same for pages with constants such as that of gelu, which are printed as doubles."""


def errors(
    made: Compilation, sizes: dict[str, int], seed: int, floor: float = FLOOR
) -> dict[str, float]:
    """How far each gradient is from the differences at a drawn point, relative to its terms.

    Terms that cancel leave the error of a constant in them: that is `floor` of the terms, not of
    what is left of them.
    """
    printed, rng, found = Printed(made, sizes, seed), np.random.default_rng(100 + seed), {}
    for wanted, adjoint in made.backward.results:
        along = numbers(rng.standard_normal(printed.values[wanted].shape))
        slope = printed.slope(wanted, along)
        parts = np.ravel(0 if adjoint is None else printed.values[adjoint] * along)
        scale = abs(printed.loss({})) + sum(
            np.abs(w.ravel()).sum() for w in printed.weights.values()
        )
        error = max(abs(parts.sum() - slope) - floor * scale, 0)
        found[wanted] = float(error / max(abs(slope), np.abs(parts).sum())) if error else 0.0
    return found


def blank(arrays: tuple[Array, ...], sizes: dict[str, int]) -> Values:
    return {a.name: numbers(np.zeros([d.evaluate(sizes) for d in a.dims])) for a in arrays}


class Printed:
    """A report's equations at a drawn point: its gradients, and the loss that they are of."""

    def __init__(self, made: Compilation, sizes: dict[str, int], seed: int) -> None:
        self.made, text, t = made, report_text(made), 3
        rng, backward = np.random.default_rng(seed), made.backward
        (forward_lines,) = paragraphs(text, "Forward")
        lines = [line for block in paragraphs(text, "Backward") for line in block]
        self.forward, rest = Page(forward_lines, sizes, t), Page(lines, sizes, t)
        self.blank = blank(made.step.arrays, sizes)
        self.values = blank((*made.step.arrays, *backward.forward.arrays, *backward.arrays), sizes)
        self.given = {}
        for array in made.step.arrays:
            if array.role != "local":
                drawn = rng.standard_normal(self.values[array.name].shape)
                self.given[array.name] = numbers(drawn if array.floating else drawn > 0)
        self.values |= {name: x.copy() for name, x in self.given.items()}
        self.frozen: Frozen = {}
        self.forward.run(self.values, self.frozen)
        shapes = {name: self.values[name].shape for name, _ in backward.seeds}
        self.weights = {name: numbers(rng.standard_normal(s)) for name, s in shapes.items()}
        self.values |= {seed: self.weights[name].copy() for name, seed in backward.seeds}
        rest.run(self.values)

    def loss(self, moved: Values) -> Number:
        scratch = {n: x.copy() for n, x in self.blank.items()} | self.given | moved
        self.forward.run(scratch, self.frozen, record=False)
        return sum(numbers(w * scratch[n]).sum() for n, w in self.weights.items())

    def slope(self, name: str, along: np.ndarray) -> Number:
        """The derivative of the loss along a direction.

        A central difference is wrong by h^2 of the third derivative, 1e-40 of it, and by roundings
        of 1e-60 / h = 1e-40 of the loss; a kink would have to lie within 1e-20.
        """
        h = exact.mpf(10) ** -20
        there, back = (
            self.loss({name: numbers(self.given[name] + s * h * along)}) for s in (1, -1)
        )
        return (there - back) / (2 * h)
