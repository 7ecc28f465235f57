"""When a factor is at most 1 in size: always, never, or while something holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fwgen.commands.report.blocks import Math
from fwgen.commands.report.bounds import Bounds
from fwgen.commands.report.matrix import vector
from fwgen.emit.latex import ADD as LATEX_ADD
from fwgen.emit.latex import Latex
from fwgen.ir.nodes import Apply, Const, Index, Load, Scalar
from fwgen.ir.text import ADD, number_text, scalar_text
from fwgen.ir.walk import scalars, substitute, variables


@dataclass(frozen=True)
class Conditions:
    """Conditions on the formulas of one step, printed with `latex`.

    `seen` collects the exponentials that a condition has been given for, without their indices.
    """

    bounds: Bounds
    latex: Latex
    seen: set[Scalar] = field(default_factory=set)

    def at_most_one(self, factor: Scalar) -> Math | None:
        """What keeps |factor| at most 1, or None where its structure does."""
        known = self.bounds.of(factor)
        if known.low >= -1 and known.high <= 1:
            return None
        match self.looked_through(factor):
            case Apply("exp", (inner,)):
                return self._at_most_zero(inner)
            case Apply("sub", (Const(1), inner)):
                low = None if self.bounds.of(inner).low >= 0 else 0
                return self.between(low, inner, 2)
        if known.low >= -1:
            return self.between(None, factor, 1)
        return self.size(factor)

    def note(self, factors: Sequence[Scalar]) -> None:
        """Remember the exponentials that these factors are."""
        for factor in factors:
            self.seen.update(vector(n) for n in scalars(self.looked_through(factor)) if _is_exp(n))

    def looked_through(self, factor: Scalar) -> Scalar:
        """A name that stands for an element-wise formula, as that formula."""
        while isinstance(factor, Load):
            found = self.bounds.definitions.get(factor.array, [])
            if len(found) != 1 or found[0].reduce is not None:
                return factor
            if any(index.variable is None for index in found[0].index):
                return factor
            places: dict[object, Index] = dict(zip(found[0].free, factor.index, strict=True))
            factor = substitute(found[0].body, places)  # type: ignore[arg-type]
        return factor

    def between(self, low: int | None, inner: Scalar, high: int) -> Math:
        """`low <= inner <= high`, for all its indices."""
        text, tex = scalar_text(inner, ADD), self.latex.scalar(inner, LATEX_ADD)
        text, tex = f"{text} <= {high}", rf"{tex} \le {high}"
        if low is not None:
            text, tex = f"{low} <= {text}", rf"{low} \le {tex}"
        return self._for_all(inner, Math(text, tex))

    def _at_most_zero(self, inner: Scalar) -> Math:
        """`inner <= 0`, less the factors whose sign is known."""
        negative, kept = False, []
        for factor in _factors(inner):
            known = self.bounds.of(factor)
            if known.high <= 0:
                negative = not negative
            elif known.low < 0:
                kept.append(factor)
        if len(kept) != 1:
            return self.between(None, inner, 0)
        text, tex = scalar_text(kept[0], ADD), self.latex.scalar(kept[0], LATEX_ADD)
        sign = (">=", r"\ge") if negative else ("<=", r"\le")
        return self._for_all(kept[0], Math(f"{text} {sign[0]} 0", rf"{tex} {sign[1]} 0"))

    def size(self, factor: Scalar) -> Math:
        """`|factor| <= 1`, for all its indices."""
        text, tex = scalar_text(factor), self.latex.scalar(factor)
        return self._for_all(factor, Math(f"|{text}| <= 1", rf"\left|{tex}\right| \le 1"))

    @staticmethod
    def _for_all(inner: Scalar, math: Math) -> Math:
        names = [var.name for var in variables(inner)]
        if not names:
            return math
        text = f"{math.text} for all {', '.join(names)}"
        return Math(text, rf"{math.latex} \text{{ for all }} {', '.join(names)}")


def _is_exp(node: Scalar) -> bool:
    return isinstance(node, Apply) and node.op == "exp"


def _factors(expression: Scalar) -> list[Scalar]:
    match expression:
        case Apply("mul", args):
            return [factor for argument in args for factor in _factors(argument)]
        case Apply("neg", (inner,)):
            return [Const(-1), *_factors(inner)]
    return [expression]


def literal(factors: tuple[Scalar, ...]) -> float | None:
    """The value of a product of numbers, 1 for none; None where it holds anything else."""
    value = 1.0
    for factor in factors:
        if not isinstance(factor, Const):
            return None
        value *= factor.value
    return value


def number(value: float) -> str:
    """A number to four digits."""
    return number_text(float(f"{value:.4g}"))
