"""Two tokens at a time: scans that pass over their state once for each pair of tokens.

With `W_1 = D W + sum_g y_g (x) c_g` at the first token of a pair, a read at the second one is

    W_1 x = D W x + sum_g y_g (c_g . x),

so that the reads of both tokens share one pass over `W`, and one pass writes both updates,

    W_2 = D' D W + sum_g y_g (x) D' c_g + sum_g y'_g (x) c'_g:

half the loads and stores of the state for the same arithmetic. `c_g . x`, the decayed `x` and the
decayed `c_g` are known before the scan, the products with `y_g` are vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fwgen.ir.affine import Update, affine_update
from fwgen.ir.fresh import Names
from fwgen.ir.nodes import (
    Array,
    Index,
    Load,
    Position,
    Reduction,
    Scalar,
    Statement,
    Var,
)
from fwgen.ir.terms import Term, product, terms, total
from fwgen.ir.walk import loads, reads, rewrite, scalars, variables
from fwgen.schedule.nests import targets
from fwgen.schedule.plan import Batch, Nest, Pair, Scan


def pair_scans(
    phases: Sequence[Batch | Scan], arrays: Mapping[str, Array]
) -> tuple[tuple[Batch | Scan, ...], tuple[Array, ...]]:
    """Pair the tokens of every scan that allows it; gives the phases and the arrays they add.

    A scan allows it when it walks forward, has one carried matrix with an affine update, and all
    else that touches the matrix are reads along its rows by vectors known before the scan.
    """
    found: list[Batch | Scan] = []
    made: dict[str, Array] = {}
    for phase in phases:
        parts = _parts(phase) if isinstance(phase, Scan) else None
        writer = None if parts is None else _Writer(parts, {**arrays, **made})
        pair = None if writer is None else writer.pair()
        if writer is None or pair is None:
            found.append(phase)
            continue
        made |= writer.made
        assert isinstance(phase, Scan)
        around = [Batch(tuple(part), True) for part in (writer.before, writer.after)]
        found += [around[0], replace(phase, pair=pair), around[1]]
    kept = (p for p in found if isinstance(p, Scan) or p.statements)
    return tuple(kept), tuple(made.values())


@dataclass(frozen=True, slots=True)
class _Parts:
    """A scan taken apart: the reads of its matrix, its update, and what it computes of its own."""

    scan: Scan
    nest: Nest
    reads: tuple[Statement, ...]
    write: Statement
    update: Update
    written: frozenset[str]


def _parts(scan: Scan) -> _Parts | None:
    nests = [item for item in scan.items if isinstance(item, Nest)]
    whole = scan.rotated or (len(scan.items) == 1 and len(nests) == 1)
    if scan.reverse or scan.history or scan.split is None or len(scan.carries) != 1 or not whole:
        return None
    (carry,) = scan.carries
    matrix = [s for nest in nests for s in nest.statements]
    writes = [s for s in matrix if s.target == carry.after]
    others = tuple(s for s in matrix if s.target != carry.after)
    update = affine_update(writes, carry.before, carry.after)
    if update is None or (scan.rotated and nests[-1].statements != tuple(writes)):
        return None
    moving = any(isinstance(n, Position) for s in matrix for n in scalars(s.body))
    if moving or any(carry.after in reads(s) for s in others):
        return None
    return _Parts(scan, nests[0], others, writes[0], update, frozenset(targets(scan.items)))


@dataclass
class _Writer:
    """Builds the statements of second tokens; `made` are the arrays that they add."""

    parts: _Parts
    arrays: Mapping[str, Array]
    made: dict[str, Array] = field(default_factory=dict)
    before: list[Statement] = field(default_factory=list)
    after: list[Statement] = field(default_factory=list)

    def pair(self) -> Pair | None:
        """The pair; None where a read or write has another form."""
        update = self.parts.update
        sides = [
            self.sides(factors) for factors in (update.decay, *(w.factors for w in update.writes))
        ]
        if any(side is None for side in sides):
            return None
        needed = {load.array for w in update.writes for f in w.factors for load in loads(f)}
        for item in self.parts.scan.items:
            needed.update(reads(item) if isinstance(item, Statement) else ())
        changed: list[Statement] = []
        repairs: list[Statement] = []
        for statement in self.parts.reads:
            query = self.query(statement)
            if query is None:
                return None
            read, repair = self.second(statement, *query)
            changed.append(read)
            (repairs if statement.target in needed else self.after).append(repair)
        return Pair(tuple(changed), self.write(), tuple(repairs))

    def query(self, statement: Statement) -> tuple[list[Scalar], list[Scalar]] | None:
        """The factors of a read beside the matrix: those that are summed over, and the others."""
        row, lane = self.parts.nest.row, self.parts.nest.lane
        parts = terms(statement.body)
        if statement.over != (row,) or statement.reduce != "sum" or len(parts) != 1:
            return None
        if statement.index != (Index.of(lane),) or parts[0].negative:
            return None
        old = self.parts.update.old
        own = [f for f in parts[0].factors if isinstance(f, Load) and f.array == old]
        others = [f for f in parts[0].factors if f not in own]
        if len(own) != 1 or any(old in {load.array for load in loads(f)} for f in others):
            return None
        return self.sides(others)

    def sides(self, factors: Sequence[Scalar]) -> tuple[list[Scalar], list[Scalar]] | None:
        """Factors along rows, which must be known before the scan, and the others."""
        if any(len(variables(f)) > 1 for f in factors):
            return None
        inside = [f for f in factors if self.parts.nest.row in variables(f)]
        if any(load.array in self.parts.written for f in inside for load in loads(f)):
            return None
        return inside, [f for f in factors if f not in inside]

    def second(
        self, statement: Statement, inside: list[Scalar], outside: list[Scalar]
    ) -> tuple[Statement, Statement]:
        """A read at the second token: from the matrix before the pair, and what completes it."""
        nest, update = self.parts.nest, self.parts.update
        lane, row = Index.of(nest.lane), Index.of(nest.row)
        along, across = self.decay()
        across = [self.earlier(f) for f in across]
        vector = product([*inside, *map(self.earlier, along)])
        if along:
            vector = self.fresh("x", statement, (nest.row,), vector, ())
        matrix = Load(update.old, (lane, row))
        added = [self.written(statement, term, inside, outside) for term in update.writes]
        if not across:
            read = replace(statement, body=product([*outside, matrix, vector]))
            return read, self.repair(statement, added, accumulate=True)
        raw = self.named("raw", statement, (nest.lane,))
        read = replace(statement, target=raw, body=product([matrix, vector]), accumulate=False)
        kept = Term(False, (*outside, *across, Load(raw, (lane,))))
        return read, self.repair(statement, [kept, *added], accumulate=statement.accumulate)

    def decay(self) -> tuple[list[Scalar], list[Scalar]]:
        """The factors of the decay that go with rows, known before the scan, and the others."""
        lane, made = self.parts.nest.lane, self.parts.written
        along = [f for f in self.parts.update.decay if lane not in variables(f)]
        along = [f for f in along if not made.intersection(x.array for x in loads(f))]
        return along, [f for f in self.parts.update.decay if f not in along]

    def write(self) -> Statement:
        """The update of both tokens, written at the second one."""
        parts = self.parts
        along, across = self.decay()
        matrix = Load(parts.update.old, parts.write.index)
        both = self.known("decay", [*map(self.earlier, along), *along])
        kept = Term(False, (*map(self.earlier, across), *across, *both, matrix))
        found = [kept]
        for term in parts.update.writes:
            sides = self.sides(term.factors)
            assert sides is not None
            row = self.known("c", [*map(self.earlier, sides[0]), *along])
            found.append(Term(term.negative, (*map(self.earlier, sides[1]), *across, *row)))
        return replace(parts.write, body=total([*found, *parts.update.writes]))

    def known(self, stem: str, factors: list[Scalar]) -> list[Scalar]:
        """A product that is known before the scan, as one factor; none for no factors."""
        if len(factors) < 2:
            return factors
        row = self.parts.nest.row
        free = (row,) if any(row in variables(f) for f in factors) else ()
        return [self.fresh(stem, self.parts.write, free, product(factors), ())]

    def written(
        self, statement: Statement, term: Term, inside: list[Scalar], outside: list[Scalar]
    ) -> Term:
        """What a write of the first token adds to a read of the second: `y (c . x)`."""
        sides = self.sides(term.factors)
        assert sides is not None
        row, other = sides
        value = product([*map(self.earlier, row), *inside])
        scalar = self.fresh("s", statement, (), value, (self.parts.nest.row,))
        return Term(term.negative, (*outside, *map(self.earlier, other), scalar))

    def repair(self, statement: Statement, parts: list[Term], accumulate: bool) -> Statement:
        """The statement that completes a read of a second token."""
        return replace(statement, body=total(parts), over=(), reduce=None, accumulate=accumulate)

    def earlier(self, factor: Scalar) -> Scalar:
        """A factor at the first token of the pair."""

        def change(node: Scalar) -> Scalar:
            if not isinstance(node, Load):
                return node
            array = self.arrays[node.array]
            if array.role in ("param", "buffer"):
                return node
            known = {a.of: a for a in self.made.values() if a.role == "earlier"}
            if array.name not in known:
                name = self.unused(f"{array.name}_earlier")
                known[array.name] = replace(array, name=name, role="earlier", of=array.name)
                self.made[name] = known[array.name]
            return Load(known[array.name].name, node.index)

        return rewrite(factor, change)

    def fresh(
        self,
        stem: str,
        statement: Statement,
        free: tuple[Var, ...],
        body: Scalar,
        over: tuple[Var, ...],
    ) -> Load:
        """A new value, computed before the scan."""
        name = self.named(stem, statement, free)
        index = tuple(Index.of(var) for var in free)
        reduce: Reduction | None = "sum" if over else None
        self.before.append(Statement(name, index, body, over, reduce, False, statement.line))
        return Load(name, index)

    def named(self, stem: str, statement: Statement, free: tuple[Var, ...]) -> str:
        """The name of a new array."""
        name = self.unused(f"{stem}_{statement.target}")
        self.made[name] = Array(name, tuple(var.dim for var in free), "local")
        return name

    def unused(self, base: str) -> str:
        """A name that no array has."""
        return Names({*self.arrays, *self.made}).fresh(base)
