"""Affine updates of a state, as data: a decay and writes.

    W'[i, j] = D W[i, j] + sum_g y_g[i] c_g[j]

D and each term are products of factors, and no factor depends on more than one variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fwgen.ir.nodes import Load, Scalar, Statement, Var
from fwgen.ir.terms import Term, terms
from fwgen.ir.walk import loads, variables


@dataclass(frozen=True, slots=True)
class Update:
    """An affine update: `decay` factors times the old state, plus writes without it."""

    old: str
    axes: tuple[Var, ...]
    decay: tuple[Scalar, ...]
    writes: tuple[Term, ...]


def affine_update(statements: Sequence[Statement], old: str, new: str) -> Update | None:
    """The update `old` -> `new` as decay and writes, if its one statement has that form."""
    found = [s for s in statements if s.target == new]
    if len(found) != 1 or found[0].over or found[0].accumulate:
        return None
    axes = tuple(index.variable for index in found[0].index)
    if any(var is None for var in axes):
        return None
    decay: tuple[Scalar, ...] | None = None
    writes: list[Term] = []
    for term in terms(found[0].body):
        own = [f for f in term.factors if isinstance(f, Load) and f.array == old]
        touched = sum(load.array == old for f in term.factors for load in loads(f))
        if not touched:
            if any(len(variables(f)) > 1 for f in term.factors):
                return None
            writes.append(term)
            continue
        simple = all(len(variables(f)) < 2 for f in term.factors if f not in own)
        plain = simple and len(own) == 1 and touched == 1 and own[0].index == found[0].index
        if not plain or decay is not None or term.negative:
            return None
        decay = tuple(f for f in term.factors if f is not own[0])
    if decay is None:
        return None
    return Update(old, tuple(v for v in axes if v is not None), decay, tuple(writes))
