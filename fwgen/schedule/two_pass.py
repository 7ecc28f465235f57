"""The backward of a rule whose adjoint recurrence needs no state: two passes, nothing replayed.

For an affine stage the adjoint of the state obeys a recurrence of its own. One pass backward in
time runs it and everything that depends on adjoints alone; one pass forward rebuilds the states
from what the forward kept of their writes, and collects the gradients that need a state. The split
is found from the statements: it exists when none of them needs both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fwgen.ir.carries import Carry, Telescoped, is_mark
from fwgen.ir.nodes import Array, Statement, Step
from fwgen.ir.walk import reads
from fwgen.schedule.adjoint import Adjoint, merged, param_gradients
from fwgen.schedule.crossing import computed, handed_on, shared
from fwgen.schedule.forward import state_carries
from fwgen.schedule.graph import dependents, needed
from fwgen.schedule.pairs import pair_scans
from fwgen.schedule.phases import phases
from fwgen.schedule.plan import Kernel, Sweep


@dataclass(frozen=True, slots=True)
class Split:
    """Which pass runs which adjoint statement, and what the forward has to keep."""

    reverse: tuple[Statement, ...]
    forward: tuple[Statement, ...]
    saved: tuple[str, ...]


def split(step: Step, adjoint: Adjoint) -> Split | str:
    """Divide adjoint statements into those that need no state and the rest; or why it cannot be."""
    states = {name for s in step.states for name in (s.old, s.new)}
    matrices = {a.name for a in step.arrays if len(a.dims) > 1 and a.role == "local"}
    held = states | (dependents(step.statements, states) & matrices)
    adjoints = {name for _, seed, old in adjoint.carries for name in (seed, old)}
    adjoints |= {a.name for a in adjoint.arrays if a.of in adjoints}
    second = {n for n, s in enumerate(adjoint.statements) if held.intersection(reads(s))}
    late = {adjoint.statements[n].target for n in second}
    for number, statement in enumerate(adjoint.statements):
        if number not in second and late.intersection(reads(statement)):
            second.add(number)
            late.add(statement.target)
    for number in sorted(second):
        statement = adjoint.statements[number]
        if adjoints.intersection([statement.target, *reads(statement)]):
            name = statement.target.removeprefix("d_")
            return f"the gradient of {name} needs a state and an adjoint state"
    ranks = {a.name: len(a.dims) for a in adjoint.arrays}
    uses = {
        n for m in second for n in (adjoint.statements[m].target, *reads(adjoint.statements[m]))
    }
    gradients = {array for _, array in adjoint.gradients}
    for number, statement in enumerate(adjoint.statements):
        name = statement.target
        if number not in second and name in uses - gradients and ranks[name] > 1:
            return f"{name} would have to be kept for every token"
    first = [s for n, s in enumerate(adjoint.statements) if n not in second]
    rest = [s for n, s in enumerate(adjoint.statements) if n in second]
    saved = _kept(step, [*first, *rest], held)
    if isinstance(saved, str):
        return saved
    return Split(tuple(first), tuple(rest), saved)


def _kept(step: Step, uses: Sequence[Statement], held: set[str]) -> tuple[str, ...] | str:
    """Values computed from a state that the backward needs again."""
    new = {s.new for s in step.states}
    from_state = {s.target for s in step.statements if held.intersection(reads(s))} - held
    values = _values(step, uses, from_state, [*new])
    saved = tuple(a.name for a in step.arrays if a.name in values and a.name in from_state)
    wide = [a.name for a in step.arrays if a.name in saved and len(a.dims) > 1]
    return f"{wide[0]} would have to be kept for every token" if wide else saved


def _values(
    step: Step, uses: Iterable[Statement], given: set[str], more: Sequence[str] = ()
) -> set[str]:
    """Forward arrays that `uses` and `more` depend on, looking no further than `given`."""
    wanted = {name for s in uses for name in reads(s)} | set(more)
    open_ = [s for s in step.statements if s.target not in given]
    for statement in needed(open_, wanted):
        wanted.update(reads(statement))
    return wanted


@dataclass(frozen=True, slots=True)
class _Pass:
    """One sweep in the making: its adjoint statements, its direction and its carries."""

    own: tuple[Statement, ...]
    reverse: bool
    carries: tuple[Carry, ...]
    finale: tuple[Statement, ...] = ()
    taken: frozenset[str] = frozenset()
    """Forward values that an earlier sweep hands on."""


def two_pass_kernel(step: Step, adjoint: Adjoint, parts: Split, decays: Telescoped) -> Kernel:
    """The backward kernel: a reverse sweep, a forward sweep, and a reverse sweep for decays."""
    third = _after_decays(parts, decays)
    adjoints = tuple(
        Carry(seed, old, f"grad_final {name}", f"grad_state {name}")
        for name, seed, old in adjoint.carries
    )
    early, late = _before_carry(decays)
    seen = {s.target for s in parts.forward}
    reverse = [s for s in early if not seen.intersection(reads(s))]
    forward = [s for s in early if seen.intersection(reads(s))]
    passes = [
        _Pass((*(s for s in parts.reverse if id(s) not in third), *reverse), True, adjoints),
        _Pass(
            (*(s for s in parts.forward if id(s) not in third), *forward),
            False,
            state_carries(step, False),
            decays.finale,
        ),
        _Pass(
            (*late, *(s for s in (*parts.reverse, *parts.forward) if id(s) in third)),
            True,
            decays.carries,
        ),
    ]
    arrays = (*step.arrays, *adjoint.arrays, *decays.arrays)
    one, two = shared(
        step,
        {a.name: a for a in arrays},
        passes[0].own,
        passes[1].own,
        parts.saved,
    )
    passes[:2] = [replace(passes[0], own=one), replace(passes[1], own=two)]
    used = [p for p in passes if p.own or p.finale]
    taken = handed_on(
        step, {a.name: a for a in arrays}, parts.saved, [_wanted(step, p) for p in used]
    )
    used = [replace(p, taken=names) for p, names in zip(used, taken, strict=True)]
    sweeps: list[Sweep] = []
    for n, this in enumerate(used):
        sweep = _sweep(step, adjoint, parts.saved, arrays, used[:n], this, used[n + 1 :])
        found, added = pair_scans(sweep.phases, {a.name: a for a in arrays})
        sweeps.append(replace(sweep, phases=found))
        arrays = (*arrays, *added)
    return Kernel("backward", arrays, tuple(sweeps), param_gradients(step, adjoint))


def _wanted(step: Step, this: _Pass) -> set[str]:
    """What a pass reads, and the states that it rebuilds."""
    uses = {name for s in (*this.own, *this.finale) for name in reads(s)}
    return uses | ({c.after for c in this.carries} & {s.new for s in step.states})


def _before_carry(decays: Telescoped) -> tuple[list[Statement], list[Statement]]:
    """The statements that do not wait for the telescoping sum, and the others."""
    moving = dependents(decays.statements, {c.before for c in decays.carries})
    early = [s for s in decays.statements if s.target not in moving]
    return early, [s for s in decays.statements if s.target in moving]


def _after_decays(parts: Split, decays: Telescoped) -> set[int]:
    """Identities of the adjoint statements that wait for the gradient of a decay."""
    late = {s.target for s in decays.statements}
    found: set[int] = set()
    for statement in (*parts.reverse, *parts.forward):
        if late.intersection(reads(statement)):
            late.add(statement.target)
            found.add(id(statement))
    return found


def _mentioned(this: _Pass) -> set[str]:
    """The arrays that a pass reads, and those that it adds to."""
    return {n for s in (*this.own, *this.finale) for n in reads(s)} | {s.target for s in this.own}


def _made_again(this: _Pass, earlier: Sequence[_Pass]) -> set[str]:
    """Arrays that a pass computes by the very statements of earlier ones."""
    before = {id(s) for p in earlier for s in p.own}
    return {s.target for s in this.own if id(s) in before}


def _sweep(
    step: Step,
    adjoint: Adjoint,
    kept: Sequence[str],
    arrays: Sequence[Array],
    earlier: Sequence[_Pass],
    this: _Pass,
    later: Sequence[_Pass],
) -> Sweep:
    """Forward values recomputed or loaded, the adjoint statements, and what crosses sweeps."""
    by_name = {a.name: a for a in arrays}
    own_names = {name for c in this.carries for name in (c.before, c.after)}
    gradients = {array: f"grad {name}" for name, array in adjoint.gradients}
    heads = {array for name, array in adjoint.gradients if by_name[name].role == "param"}
    made = {s.target for p in earlier for s in p.own} - own_names - heads
    made -= _made_again(this, earlier)
    after = {s.target for p in later for s in p.own}
    asked = {name for p in later for name in _mentioned(p) - _made_again(p, [this])}
    uses = {name for s in (*this.own, *this.finale) for name in reads(s)}
    own_made = made & (uses | {s.target for s in this.own})
    fetches = tuple(n for n in by_name if n in own_made | this.taken)
    forward = computed(step, _wanted(step, this), {*kept, *made, *this.taken})
    own = merged(this.own, {a.name: a.dims for a in adjoint.arrays if a.name not in heads}, fetches)
    statements = (*forward, *own)
    targets = {s.target for s in own} - own_names - heads
    handed = {n for p in later for n in p.taken} & {s.target for s in forward}
    targets |= handed
    asked |= handed
    spills = tuple(n for n in by_name if n in targets and n in asked)
    read = {name for s in statements for name in reads(s)}
    loads = [(n, f"input {n}") for n, a in by_name.items() if n in read and a.role == "input"]
    loads += [(name, f"saved {name}") for name in kept if name in read]
    loads += [(adjoint.output_seed, "grad_y")] if adjoint.output_seed in read else []
    marks = {a.name: a.of for a in arrays if is_mark(a)}
    loads += [(name, of) for name, of in marks.items() if name in read]
    stores = tuple(
        (n, gradients[n]) for n in by_name if n in gradients and n in targets and n not in after
    )
    return Sweep(
        phases(
            statements,
            this.carries,
            by_name,
            {*spills, *gradients},
            reverse=this.reverse,
            lane_axis=0 if this.reverse else 1,
        ),
        this.reverse,
        tuple(loads),
        stores,
        this.carries,
        fetches,
        spills,
        this.finale,
        key_lanes=not this.reverse,
    )
