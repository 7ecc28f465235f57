"""Gradients of log-decays by a telescoping sum.

With `W_t = d_t W_{t-1} + sum_g y_g (x) c_g` and reads `W_{t-1} x_r` only, let G be the adjoint of
W_t. The gradient of log d is `L_t = sum_i d_t G_t W_{t-1}`, and summing `G_t W_t` in two ways gives

    L_t = M_{t+1} - sum_g c_g c~_g,    M_t = L_t + sum_r x_r x~_r,

where `c~_g` is the part of the gradient of c_g that comes from the state's update, `x~_r` that of
x_r from its read. No product of a state with an adjoint state is left, at no loss for strong
decays: a token's own write occurs in neither sum, and every read must hold the decay as a factor,
so that both sums are as small as d. (A read of the old state without the decay would make L the
small difference of two large sums; such rules keep the products.) At the last token G is
what arrives for the final state: there L is formed directly, once, as `sum_i d G W_{T-1}`. At a
first token whose old state is zero, L is zero, and so it is where the decay is a reset: what
rounding leaves of the sums there would outweigh it once a rate multiplies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fwgen.algebra.normal import Decay
from fwgen.ir.affine import Update, affine_update
from fwgen.ir.carries import Carry, Telescoped
from fwgen.ir.fresh import Names
from fwgen.ir.nodes import Apply, Array, Backward, Const, Index, Load, Scalar, Statement, Step, Var
from fwgen.ir.terms import Term, terms, total
from fwgen.ir.walk import loads, reads

RESET = -40.0
"""Log-decays below it leave less of the old state than float64 resolves."""


@dataclass(frozen=True, slots=True)
class _Core:
    """A vector of the step and the array that holds its gradient through the state alone."""

    vector: str
    gradient: str
    read: bool


def telescope(backward: Backward, decays: Sequence[Decay]) -> tuple[Backward, Telescoped]:
    """Replace products of a state and its adjoint by telescoping sums, where the form allows it.

    Input: the backward of a step in normal form with reads of old states only. Output: the
    backward without those products, and what runs after it. Where a decay has no log form, or the
    statements do not have the form above, they stay as they are.
    """
    made = Telescoped()
    for decay in decays:
        if decay.differentiable and decay.log_array is not None and decay.axis != "value":
            backward, made = _one(backward, decay, made)
    return backward, made


def _one(backward: Backward, decay: Decay, made: Telescoped) -> tuple[Backward, Telescoped]:
    step = backward.forward
    state = next(s for s in step.states if s.name == decay.state)
    update = affine_update(step.statements, state.old, state.new)
    seed = dict(backward.seeds)[state.new]
    old = dict(backward.results)[state.old]
    both = [s for s in backward.statements if {seed, state.old} <= set(reads(s))]
    logarithm = _logarithm(step, decay.array)
    regular = (
        update is not None
        and logarithm is not None
        and not _moves(step, decay.array)
        and len(both) == 1
        and both[0].target == _adjoint_of(backward, decay.array)
        and not any(s.target == seed for s in backward.statements)
    )
    if not regular or update is None or logarithm is None:
        return backward, made
    cores: dict[int, _Core] = {}
    names = Names(a.name for a in (*step.arrays, *backward.arrays, *made.arrays))
    shares: dict[str, str] = {}
    for number, statement in enumerate(backward.statements):
        through = {seed, state.old}.intersection(reads(statement))
        if through and statement is not both[0] and statement.target != old:
            vector = _key_vector(backward, statement, through.pop(), len(update.axes))
            if vector is not None:
                read = seed not in reads(statement)
                part = "read" if read else "written"
                base = f"{statement.target}_{part}_{state.name}"
                if base not in shares:
                    shares[base] = names.fresh(base)
                cores[number] = _Core(vector, shares[base], read)
    if not _complete(step, state.old, decay.array, update, list(cores.values())):
        return backward, made
    after = _with_cores(backward, cores, both[0], _adjoint_of(backward, logarithm))
    parts = tuple(dict.fromkeys(cores.values()))
    return after, _sums(after, decay, logarithm, (seed, state.old), update, parts, made)


def _moves(step: Step, name: str) -> bool:
    """Whether an array depends on a state; the last token's sum would then come too early."""
    moving = {s.old for s in step.states}
    for statement in step.statements:
        if moving.intersection(reads(statement)):
            moving.add(statement.target)
    return name in moving


def _fades(step: Step, read: Statement, decay: str) -> bool:
    """Whether a read takes the decay along: in its vector, or wherever its result goes."""
    vectors = {load.array for load in loads(read.body)}
    products = [s.body for s in step.statements if s.target in vectors] + [read.body]
    if any(_factors(term, decay) for body in products for term in terms(body)):
        return True
    uses = [s.body for s in step.statements if read.target in reads(s)]
    through = [t for body in uses for t in terms(body) if read.target in _accessed(t)]
    return all(_factors(term, decay) for term in through)


def _factors(term: Term, array: str) -> bool:
    """Whether an array is one of the factors of a term."""
    return any(isinstance(f, Load) and f.array == array for f in term.factors)


def _accessed(term: Term) -> set[str]:
    return {load.array for factor in term.factors for load in loads(factor)}


def _logarithm(step: Step, decay: str) -> str | None:
    """The array e where the decay is exp(e)."""
    found = [s for s in step.statements if s.target == decay]
    match [s.body for s in found]:
        case [Apply("exp", (Load(name, index),))] if index == found[0].index:
            return name
    return None


def _adjoint_of(backward: Backward, name: str) -> str:
    """The array that collects the gradient of `name`."""
    return next((a.name for a in backward.arrays if a.of == name), "")


def _key_vector(backward: Backward, statement: Statement, through: str, rank: int) -> str | None:
    """The vector along the last axis of the state whose gradient the statement adds to."""
    arrays = {a.name: a for a in (*backward.forward.arrays, *backward.arrays)}
    target = arrays[statement.target]
    if len(statement.index) != 1 or target.of not in arrays:
        return None
    access = next(x for x in loads(statement.body) if x.array == through)
    return target.of if access.index[rank - 1] == statement.index[0] else None


def _complete(step: Step, old: str, decay: str, update: Update, cores: Sequence[_Core]) -> bool:
    """Whether every write and every read is a product with exactly one core, and reads fade."""
    readers = [s for s in step.statements if old in reads(s) and s.target != _new(step, old)]
    for reader in readers:
        parts = terms(reader.body)
        own = [f for f in parts[0].factors if isinstance(f, Load) and f.array == old]
        if len(parts) != 1 or len(own) != 1 or not _fades(step, reader, decay):
            return False
    reading = [core for core in cores if core.read]
    return len(reading) == len(readers) and len(cores) - len(reading) == len(update.writes)


def _new(step: Step, old: str) -> str:
    return next(s.new for s in step.states if s.old == old)


def _with_cores(
    backward: Backward, cores: dict[int, _Core], dropped: Statement, coming: str
) -> Backward:
    """Send the state's part of each gradient to an array of its own, and add that in turn.

    The gradient `coming` gets its contributions later.
    """
    arrays = {a.name: a for a in backward.arrays}
    last = {core.gradient: number for number, core in cores.items()}
    statements: list[Statement] = []
    for number, statement in enumerate(backward.statements):
        core = cores.get(number)
        if statement is dropped:
            continue
        if core is None:
            statements.append(statement)
            continue
        shape = arrays[statement.target]
        arrays[core.gradient] = Array(core.gradient, shape.dims, "local", of=core.vector)
        statements.append(replace(statement, target=core.gradient))
        if number == last[core.gradient]:
            index = (Index.of(Var("j", shape.dims[0])),)
            share = Load(core.gradient, index)
            statements.append(Statement(statement.target, index, share, accumulate=True))
    alive = _without_zeros(statements, {n: a for n, a in arrays.items() if n != coming})
    return replace(backward, arrays=tuple(arrays.values()), statements=tuple(alive))


def _without_zeros(statements: list[Statement], arrays: dict[str, Array]) -> list[Statement]:
    """Drop what is computed from a gradient that nothing contributes to any more."""
    while True:
        empty = {n for n, a in arrays.items() if a.role == "local"} - {s.target for s in statements}
        kept = [s for s in statements if not empty.intersection(reads(s))]
        if len(kept) == len(statements):
            return kept
        statements = kept


@dataclass(frozen=True, slots=True)
class _Sum:
    """The arrays of one state's sums, and the axis that they keep: `index` is empty for a scalar.

    `m` and `gradient` are M and L of the equations above, `m_next` is M of the token after,
    `m_end` that of the last one; `wrote` and `reads` are the sums over the cores.
    """

    index: tuple[Index, ...]
    key: Var
    m: str
    m_next: str
    m_end: str
    gradient: str
    wrote: str
    reads: str


def _sums(
    backward: Backward,
    decay: Decay,
    logarithm: str,
    ends: tuple[str, str],
    update: Update,
    cores: Sequence[_Core],
    made: Telescoped,
) -> Telescoped:
    """L and M of one state as statements, their carry, and M after the last token."""
    seed, old = ends
    key = Var("j", update.axes[-1].dim)
    index = (Index.of(key),) if backward.forward.array(decay.array).dims else ()
    taken = (*backward.forward.arrays, *backward.arrays, *made.arrays)
    fresh = Names(a.name for a in taken).fresh
    names = [fresh(f"{n}_{decay.state}") for n in ("m", "m_next", "m_end", "l", "wrote", "reads")]
    one = _Sum(index, key, *names)
    last = Array(fresh(f"last_{seed}"), backward.forward.array(old).dims, "seed", of=decay.state)
    held = Array(fresh(f"held_{decay.state}"), (), "seed", of=f"mark held {decay.state}")
    known = next((a for a in made.arrays if a.of == "mark inner"), None)
    inner = known or Array(fresh("inner"), (), "seed", of="mark inner")
    arrays = [Array(n, tuple(key.dim for _ in index), "local") for n in names]
    arrays += [last, held, *([] if known else [inner])]
    statements = _recurrence(one, cores, logarithm, (inner.name, held.name))
    share = Load(one.gradient, index)
    statements.append(Statement(_adjoint_of(backward, logarithm), index, share, accumulate=True))
    return Telescoped(
        (*made.arrays, *arrays),
        (*made.carries, Carry(one.m_next, one.m, f"finale {one.m_end}")),
        (*made.statements, *statements),
        (*made.finale, _end(one, decay, update, (last.name, old))),
    )


def _recurrence(
    one: _Sum, cores: Sequence[_Core], logarithm: str, marks: tuple[str, str]
) -> list[Statement]:
    """`L_t` and `M_t` from `M_{t+1}`."""
    inner, held = (Load(name, ()) for name in marks)
    over = () if one.index else (one.key,)
    at = (Index.of(one.key),)

    def products(read: bool, *more: Scalar) -> Scalar:
        own = [c for c in cores if c.read == read]
        return total([Term(False, (*more, Load(c.vector, at), Load(c.gradient, at))) for c in own])

    def sums(target: str, body: Scalar) -> Statement:
        return Statement(target, one.index, body, over, "sum" if over else None)

    def plus(name: str, negative: bool = False) -> Term:
        return Term(negative, (Load(name, one.index),))

    difference = total([plus(one.m_next), plus(one.wrote, True)])
    reset = Apply("lt", (Load(logarithm, one.index), Const(RESET)))
    kept = Term(False, (held, Apply("select", (reset, Const(0.0), difference))))
    return [
        sums(one.wrote, products(False, inner)),
        sums(one.reads, products(True)),
        Statement(one.gradient, one.index, total([kept])),
        Statement(one.m, one.index, total([plus(one.gradient), plus(one.reads)])),
    ]


def _end(one: _Sum, decay: Decay, update: Update, ends: tuple[str, str]) -> Statement:
    """`M` after the last token: `sum_i d G W_{T-1}`; `ends` are G and the state before."""
    axes = tuple(Index.of(v) for v in update.axes)
    factor = Load(decay.array, axes[-1:] if one.index else ())
    body = total([Term(False, (factor, *(Load(name, axes) for name in ends)))])
    summed = update.axes[:-1] if one.index else update.axes
    return Statement(
        one.m_end, axes[-1:] if one.index else (), body, summed, "sum" if summed else None
    )
