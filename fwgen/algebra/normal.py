"""The normal form of a step: one update statement per state, narrow arrays, and plain reads.

In: any legal step. Out: an equivalent step in which a matrix state whose update is affine reads

    W_n[i, j] = d * W[i, j] + sum_g u_g[i] * c_g[j]

with `d` absent, a scalar, one array per key `d[j]` or value `d[i]`, or a product of these; every
read is `r[i] = sum_j W[i, j] * x[j]` of the state before or after the token; everything else is a
statement over at most one axis. Beside it: how each state moves, and which decays have a logarithm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fwgen.algebra.affine import Domain, Part, collapsed, product, renamed, total
from fwgen.algebra.chunkable import chunk_obstacle
from fwgen.algebra.classes import Transition, transitions
from fwgen.algebra.logdecay import Decay, with_log_decays
from fwgen.algebra.places import placed
from fwgen.algebra.reductions import Names, body_of, hoisted, in_arrays, reduced
from fwgen.algebra.share import ordered, shared, tidied, without_copies, without_dead
from fwgen.algebra.sink import Sink
from fwgen.algebra.small import small_parts
from fwgen.ir.nodes import Apply, Load, Scalar, State, Statement, Step, Var
from fwgen.ir.ops import OPS
from fwgen.ir.walk import loads, reads, variables

__all__ = ["Decay", "Normal", "Transition", "normalise"]


@dataclass(frozen=True, slots=True)
class Normal:
    """A step in normal form and what is known about its states.

    `transitions` and `decays` are in the order of `step.states`. `chunk_reason` is None where every
    stage may be written in chunk form, else the first reason why not, at line `chunk_line`.
    """

    step: Step
    transitions: tuple[Transition, ...]
    decays: tuple[Decay, ...]
    chunk_reason: str | None
    chunk_line: int | None

    def transition(self, state: str) -> Transition:
        """How that state moves; raises KeyError."""
        return {t.state: t for t in self.transitions}[state]


def normalise(step: Step) -> Normal:
    """Bring a step to normal form; its results are the same up to rounding.

    Arrays keep their names where they survive; new ones are `d`, `log_d` (decays), `u`, `c` (the
    two sides of a write), `x`, `r` (query and result of a read), `s` (dot products) of a state.
    """
    form, decays = _normal_form(step)
    found = placed(step, transitions(form, step), lambda s: transitions(_normal_form(s)[0], s))
    reason, line = chunk_obstacle(form, found)
    return Normal(form, found, decays, reason, line)


def _normal_form(step: Step) -> tuple[Step, tuple[Decay, ...]]:
    """The step in normal form and its decays, not classified yet."""
    named = {array.name for array in step.arrays}
    step = _rewritten(without_dead(without_copies(shared(step))))
    step = tidied(step, _new_names(step, named))
    step, decays = with_log_decays(step, _new_names(step, named))
    return ordered(without_dead(step)), decays


def _new_names(step: Step, named: set[str]) -> set[str]:
    return {array.name for array in step.arrays} - named


def _rewritten(step: Step) -> Step:
    """Run the walk until no version of a matrix is needed that it had expanded."""
    kept: frozenset[str] = frozenset()
    while True:
        walk = _Walk(step, kept)
        try:
            return walk.run()
        except _Needed as needed:
            kept = kept | {needed.array}


class _Needed(Exception):  # noqa: N818 - control flow: the walk starts again with more arrays kept
    """An expanded matrix is used in a way that needs it as an array."""

    def __init__(self, array: str) -> None:
        super().__init__(array)
        self.array = array


@dataclass(frozen=True, slots=True)
class _Version:
    """The value of an expanded matrix over its axes."""

    axes: tuple[Var, ...]
    parts: tuple[Part, ...]


class _Walk:
    """One pass over the statements: matrices become parts, narrow statements stay."""

    def __init__(self, step: Step, kept: frozenset[str]) -> None:
        self.step, self.kept = step, kept
        self.sink = Sink(step.arrays)
        self.versions: dict[str, _Version] = {}
        rank = {array.name: len(array.dims) for array in step.arrays}
        self.bases = {s.old for s in step.states if rank[s.old] > 1}
        self.new = {state.new: state for state in step.states}
        self.owner = {a.name: a.of or a.name for a in step.arrays}
        self.owner |= {s.old: s.name for s in step.states} | {s.new: s.name for s in step.states}
        self.defined = Counter(statement.target for statement in step.statements)
        self.uses: Counter[str] = Counter()
        self.users: dict[str, Statement] = {}
        for statement in step.statements:
            for load in loads(statement.body):
                self.uses[load.array] += 1
                self.users[load.array] = statement
        self.names = Names("", 0)

    def run(self) -> Step:
        for statement in self.step.statements:
            self.names = Names(self._suffix(statement), statement.line)
            self._statement(statement)
        statements = tuple(self.sink.statements)
        return replace(self.step, arrays=tuple(self.sink.arrays.values()), statements=statements)

    def _suffix(self, statement: Statement) -> str:
        """The state that a statement updates or reads, for names."""
        for name in (statement.target, *reads(statement)):
            if name in self.new or name in self.bases:
                return self.owner[name]
            if name in self.versions:
                bases = [p.base for p in self.versions[name].parts if p.base is not None]
                if bases:
                    return self.owner[bases[0].array]
        return ""

    def _domain(self) -> Domain:
        return Domain({*self.bases, *self.versions}, self._resolve, self._opaque)

    def _resolve(self, load: Load) -> Sequence[Part] | None:
        axes = [index.variable for index in load.index]
        plain = all(axis is not None for axis in axes) and len(set(axes)) == len(axes)
        if load.array in self.bases:
            return [Part(load)] if plain else None
        if not plain:
            raise _Needed(load.array)
        version = self.versions[load.array]
        places = dict(zip(version.axes, load.index, strict=True))
        return [renamed(part, places) for part in version.parts]

    def _opaque(self, whole: Apply) -> Scalar:
        """An application over matrices, its arguments in normal form.

        The branches of `select` stay as they are: taking a factor out of a branch that is not
        taken would let its infinite derivative through.
        """
        axes = variables(whole)
        for name in reads(Statement("", (), whole)):
            if name in self.versions and (whole.op == "select" or self.uses[name] > 1):
                raise _Needed(name)
        if whole.op == "select":
            return whole
        return Apply(whole.op, tuple(self._argument(argument, axes) for argument in whole.args))

    def _argument(self, argument: Scalar, axes: Sequence[Var]) -> Scalar:
        domain = self._domain()
        if not domain.touches(argument) and len(variables(argument)) <= 1:
            return argument
        if isinstance(argument, Apply) and OPS[argument.op].kind in ("bool", "int"):
            return Apply(argument.op, tuple(self._argument(a, axes) for a in argument.args))
        own = [axis for axis in axes if axis in variables(argument)]
        parts = collapsed(domain.value(argument), own)
        return body_of(parts, own, self.sink, self.names)

    def _statement(self, statement: Statement) -> None:
        axes = tuple(i.variable for i in statement.index if i.variable is not None)
        whole = len(axes) == len(statement.index) and self.defined[statement.target] == 1
        touched = self._domain().touches(statement.body)
        matrix = len(axes) > 1 and whole
        updates = matrix and statement.target in self.new
        if not touched and not (matrix and (updates or not statement.over)):
            self._narrow(statement)
        elif statement.reduce in ("max", "min"):
            self._reduction(statement)
        elif matrix:
            self._matrix(statement, axes, touched)
        else:
            self._read(statement)

    def _values(self, statement: Statement) -> list[Part]:
        parts = self._domain().value(statement.body)
        if statement.over:
            parts = reduced(parts, statement.free, statement.over, self.sink, self.names)
        return collapsed(parts, statement.free)

    def _reduction(self, statement: Statement) -> None:
        axes = (*statement.free, *statement.over)
        body = body_of(self._domain().value(statement.body), axes, self.sink, self.names)
        self.sink.add(replace(statement, body=body))

    def _read(self, statement: Statement) -> None:
        """A statement with a narrow result, or one that is laid out in another shape."""
        parts = self._values(statement)
        if any(part.base or part.wide for part in parts):
            body = body_of(parts, statement.free, self.sink, self.names)
        else:
            body = total([(part.negative, product(part.narrow)) for part in parts])
        self._narrow(replace(statement, body=body, over=(), reduce=None))

    def _matrix(self, statement: Statement, axes: tuple[Var, ...], touched: bool) -> None:
        """A matrix: expanded where it is linear in its bases, else a statement of its own."""
        target = statement.target
        parts = self._values(statement)
        separate = not any(part.wide for part in parts)
        if target in self.new:
            parts = [self._filled(part, axes) for part in parts]
        elif self._expands(statement, separate and _one_each(parts), touched):
            if touched:
                parts = [self._filled(part, axes) for part in parts]
            self.versions[target] = _Version(axes, tuple(parts))
            return
        if touched or separate or target in self.new:
            body = body_of(parts, axes, self.sink, self.names)
            statement = replace(statement, body=body, over=(), reduce=None)
        self.sink.add(statement)
        if target in self.new or self._holds_base(parts):
            self.bases.add(target)

    def _holds_base(self, parts: Sequence[Part]) -> bool:
        """Whether parts depend on a matrix element by element."""
        factors = [factor for part in parts for factor in part.wide]
        wide = any(load.array in self.bases for factor in factors for load in loads(factor))
        return wide or any(part.base is not None for part in parts)

    def _expands(self, statement: Statement, linear: bool, touched: bool) -> bool:
        """Whether a matrix need not be an array: its users take it apart."""
        if statement.target == self.step.output or statement.target in self.kept:
            return False
        return linear or (touched and self._used_once(statement))

    def _filled(self, part: Part, axes: tuple[Var, ...]) -> Part:
        """The part in arrays; a write has one per axis, constant ones included."""
        if part.base is not None or part.wide or len(axes) > 2:
            return in_arrays(part, axes, self.sink, self.names)
        items = []
        for number, axis in enumerate(axes):
            side = part.side(axis) if number else (*part.side(None), *part.side(axis))
            body = product(side, part.negative and not number)
            stem = self.names.stem("uc"[number])
            items.append(self.sink.define(stem, (axis,), body, self.names.line))
        return Part(None, tuple(items))

    def _used_once(self, statement: Statement) -> bool:
        """Whether only one element-wise statement over the same variables uses the target."""
        if self.uses[statement.target] != 1:
            return False
        user = self.users[statement.target]
        return not user.over and len(user.free) == len(statement.free)

    def _narrow(self, statement: Statement) -> None:
        """A statement without a matrix to expand; the update of a small state is put in form."""
        state = self.new.get(statement.target)
        if state is not None and len(statement.index) < 2 and not statement.over:
            statement = self._small_update(state, statement)
        self.sink.add(statement)

    def _small_update(self, state: State, statement: Statement) -> Statement:
        """z_n[j] = d * z[j] + c[j] where the update is affine in the state, element by element."""
        parts = small_parts(self.sink.statements, state.old, statement)
        if parts is None:
            return statement
        items = []
        for part in parts:
            if part.base is not None:
                items.append(hoisted(part, statement.free, self.sink, self.names))
        rest = [(p.negative, product(p.narrow)) for p in parts if p.base is None]
        if rest:
            stem = self.names.stem("c")
            items.append(
                self.sink.define(stem, statement.free, total(rest), statement.line),
            )
        return replace(statement, body=total([(False, item) for item in items]))


def _one_each(parts: Sequence[Part]) -> bool:
    """Whether every base has a single part, so that a read of it is one read of the base."""
    bases = [part.base for part in parts if part.base is not None]
    return len(set(bases)) == len(bases)
