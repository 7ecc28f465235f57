"""Reads of an updated state rewritten as reads of the old one.

With `W' = D W + sum_g y_g (x) c_g`, a read is `W' q = D W q + sum_g y_g (c_g . q)`. Every read of
an affine stage then happens before its write, all reads of a token share one pass over the state,
and the token's own write takes part as a product of vectors, which keeps it out of the two sums
whose difference is the gradient of a decay.
"""

from __future__ import annotations

from dataclasses import replace

from fwgen.ir.affine import Update, affine_update
from fwgen.ir.nodes import Array, Index, Load, Scalar, Statement, Step, Var
from fwgen.ir.terms import Term, product, terms, total
from fwgen.ir.walk import loads, substitute, variables


def read_old_states(step: Step) -> Step:
    """Rewrite `sum_j W_new[i, j] q[j]` of affine states by reads of the old state.

    Input: a step in normal form. Output: an equivalent step. Invariant: the states' update
    statements are unchanged; reads that are not sums over one product with the new state stay.
    """
    arrays = list(step.arrays)
    statements: list[Statement] = []
    updates = {s.new: affine_update(step.statements, s.old, s.new) for s in step.states}
    expansion = _Expansion(arrays, statements)
    for statement in step.statements:
        read = _single_read(statement, updates)
        if read is None:
            statements.append(statement)
        else:
            expansion.read(statement, *read)
    return replace(step, arrays=tuple(arrays), statements=tuple(statements))


def _single_read(
    statement: Statement, updates: dict[str, Update | None]
) -> tuple[Update, Load, tuple[Scalar, ...]] | None:
    """(update, access of the new state, other factors) of a read that can be rewritten."""
    if statement.reduce != "sum" or statement.accumulate:
        return None
    parts = terms(statement.body)
    if len(parts) != 1 or parts[0].negative:
        return None
    states = [load for load in loads(statement.body) if load.array in updates]
    own = [f for f in parts[0].factors if isinstance(f, Load) and f.array in updates]
    if len(states) != 1 or len(own) != 1:
        return None
    update = updates[own[0].array]
    others = [f for f in parts[0].factors if f is not own[0]]
    plain = all(index.variable is not None for index in own[0].index)
    if update is None or not plain or any(len(variables(f)) > 1 for f in others):
        return None
    return update, own[0], tuple(others)


class _Expansion:
    """Appends the statements of rewritten reads.

    o = sum_j W'[i,j] q[j] becomes x[j] = D q[j]; r[i] = sum_j W[i,j] x[j]; s_g = sum_j c_g[j] q[j];
    o[i] = D r[i] + sum_g y_g[i] s_g, where a decay factor goes to the side that it belongs to.
    """

    def __init__(self, arrays: list[Array], statements: list[Statement]) -> None:
        self.arrays, self.statements = arrays, statements
        self.taken = {a.name for a in arrays}

    def read(
        self, statement: Statement, update: Update, access: Load, query: tuple[Scalar, ...]
    ) -> None:
        """The statements of one read."""
        here = dict(zip(update.axes, access.index, strict=True))
        decay = tuple(substitute(factor, here) for factor in update.decay)
        inside, outside = _parted(statement, (*query, *decay))
        # A decay of the whole state goes to the query, so that its gradient needs no read.
        shared = [f for f in decay if not variables(f)]
        vector = self.vector(statement, [*inside, *shared])
        state = Load(update.old, access.index)
        kept = tuple(v for v in dict.fromkeys(statement.free) if v in variables(state))
        body = product([state, vector])
        raw = self.fresh(f"r_{statement.target}", kept, body, statement.over, statement.line)
        parts = [Term(False, (*(f for f in outside if f not in shared), raw))]
        for write in update.writes:
            factors = tuple(substitute(factor, here) for factor in write.factors)
            inside, outside = _parted(statement, (*query, *factors))
            if inside:
                outside.append(self.share(statement, product(inside)))
            parts.append(Term(write.negative, tuple(outside)))
        self.statements.append(replace(statement, body=total(parts), over=(), reduce=None))

    def vector(self, statement: Statement, factors: list[Scalar]) -> Scalar:
        """What the old state is multiplied by: an array of its own where it is a product."""
        found: Scalar = product(factors)
        if len(factors) == 1:
            return found
        free = tuple(var for var in statement.over if var in variables(found))
        return self.fresh(f"x_{statement.target}", free, found, (), statement.line)

    def share(self, statement: Statement, value: Scalar) -> Load:
        """What the token's own write contributes to the sum."""
        free = tuple(v for v in statement.free if v in variables(value))
        return self.fresh(f"s_{statement.target}", free, value, statement.over, statement.line)

    def fresh(
        self, stem: str, free: tuple[Var, ...], body: Scalar, sums: tuple[Var, ...], line: int
    ) -> Load:
        """A new array with that value."""
        name = stem
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        self.arrays.append(Array(name, tuple(var.dim for var in free), "local"))
        index = tuple(Index.of(var) for var in free)
        made = Statement(name, index, body, sums, "sum" if sums else None, False, line)
        self.statements.append(made)
        return Load(name, index)


def _parted(statement: Statement, factors: tuple[Scalar, ...]) -> tuple[list[Scalar], list[Scalar]]:
    """Factors that depend on a variable that the read sums over, and the others."""
    over = set(statement.over)
    inside = [f for f in factors if over.intersection(variables(f))]
    return inside, [f for f in factors if f not in inside]
