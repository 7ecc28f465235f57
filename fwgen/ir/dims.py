"""Sizes: polynomials with integer coefficients over named dims, such as `2*K*nu + 1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Monomial = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dim:
    """A canonical polynomial: `terms` maps sorted monomials (repeated names are powers) to non-zero
    coefficients, itself sorted, so that equal sizes are equal objects."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    @staticmethod
    def of(value: int | str | Dim) -> Dim:
        """A constant, a named dim, or a dim unchanged."""
        if isinstance(value, Dim):
            return value
        if isinstance(value, str):
            return Dim((((value,), 1),))
        return Dim((((), value),)) if value else Dim()

    @staticmethod
    def _collect(pairs: list[tuple[Monomial, int]]) -> Dim:
        total: dict[Monomial, int] = {}
        for monomial, coefficient in pairs:
            key = tuple(sorted(monomial))
            total[key] = total.get(key, 0) + coefficient
        order = sorted(total, key=lambda m: (-len(m), m))
        return Dim(tuple((m, total[m]) for m in order if total[m]))

    def __add__(self, other: Dim | int) -> Dim:
        added = Dim.of(other)
        if not self.terms or not added.terms:
            return self if self.terms else added
        return Dim._collect([*self.terms, *added.terms])

    def __neg__(self) -> Dim:
        return Dim(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Dim | int) -> Dim:
        return self + -Dim.of(other)

    def __mul__(self, other: Dim | int) -> Dim:
        pairs = [(m + n, c * d) for m, c in self.terms for n, d in Dim.of(other).terms]
        return Dim._collect(pairs)

    @property
    def constant(self) -> int | None:
        """The value of a dim without names, else None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if self.terms[0][0] == () and len(self.terms) == 1 else None

    @property
    def names(self) -> frozenset[str]:
        """The named dims that occur."""
        return frozenset(name for monomial, _ in self.terms for name in monomial)

    def substitute(self, values: Mapping[str, Dim]) -> Dim:
        """Replace named dims by polynomials; names that are not given stay."""
        total = Dim()
        for monomial, coefficient in self.terms:
            term = Dim.of(coefficient)
            for name in monomial:
                term = term * values.get(name, Dim.of(name))
            total = total + term
        return total

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """The integer value; raises KeyError for a name without a size."""
        total = 0
        for monomial, coefficient in self.terms:
            for name in monomial:
                coefficient *= sizes[name]
            total += coefficient
        return total

    def __str__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = list(monomial)
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = " - " if coefficient < 0 else " + "
            text += (sign if text else sign.strip(" +")) + "*".join(factors)
        return text or "0"


ZERO = Dim.of(0)
ONE = Dim.of(1)
