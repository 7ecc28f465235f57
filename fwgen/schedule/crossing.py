"""What one sweep hands to the next: less of it where the next can compute it again for nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fwgen.ir.nodes import Array, Statement, Step
from fwgen.ir.walk import reads
from fwgen.schedule.graph import needed
from fwgen.schedule.nests import leaves_part

Statements = tuple[Statement, ...]


def shared(
    step: Step,
    arrays: Mapping[str, Array],
    first: Statements,
    second: Statements,
    saved: Collection[str],
) -> tuple[Statements, Statements]:
    """Both sweeps' adjoint statements, with cheap vectors computed where they are wanted.

    A vector of the first sweep that the second one uses crosses memory for every token. Where it is
    an element-wise function of scalars and of forward values that the second sweep loads (`saved`,
    inputs) or computes anyway, the second sweep computes it, and the first one only if it reads
    it, too. Invariant: the two sweeps in order leave the same sums in every array.
    """
    wanted = {n for s in second for n in (s.target, *reads(s))}
    known = _has(step, wanted, saved)
    known = {n for n in known if len(arrays[n].dims) < 2}
    makers: dict[str, list[Statement]] = {}
    for statement in first:
        makers.setdefault(statement.target, []).append(statement)
    moved: dict[int, Statement] = {}
    for statement in first:
        if statement.target in wanted and arrays[statement.target].dims:
            found = _products(statement.target, makers, arrays, known, step)
            moved |= {id(s): s for s in found or ()}
    again = tuple(s for s in first if id(s) in moved)
    kept = list(first)
    for statement in reversed(again):
        others = [s for s in kept if s is not statement]
        if not any(statement.target in reads(s) for s in others):
            kept = others
    return tuple(kept), (*again, *second)


def handed_on(
    step: Step,
    arrays: Mapping[str, Array],
    saved: Collection[str],
    wanted: Sequence[Collection[str]],
) -> list[frozenset[str]]:
    """What each sweep takes of the forward values that earlier ones compute anyway.

    `wanted` are the arrays that each sweep reads or rebuilds. It takes scalars that are summed over
    vectors, and vectors that spare it the loads of two others: a model's tensors have every token
    in another place, what is handed on lies together.
    """
    found: list[frozenset[str]] = []
    scalars, vectors = set[str](), dict[str, None]()
    for names in wanted:
        given = {*saved, *scalars}
        for name in reversed(vectors):
            loaded = _loaded(step, arrays, names, given)
            if len(loaded - _loaded(step, arrays, names, {*given, name})) > 1:
                given.add(name)
        forward = computed(step, names, given)
        found.append(frozenset(_named(names, forward) & given) - set(saved))
        scalars |= {s.target for s in forward if _costly(s.target, arrays, step)}
        vectors |= {s.target: None for s in forward if len(arrays[s.target].dims) == 1}
    return found


def computed(step: Step, wanted: Collection[str], given: Collection[str]) -> Statements:
    """The forward statements that a sweep runs for what it wants, where `given` is at hand."""
    return tuple(needed([s for s in step.statements if s.target not in given], wanted))


def _loaded(
    step: Step, arrays: Mapping[str, Array], wanted: Collection[str], given: Collection[str]
) -> set[str]:
    """The vectors that a sweep neither computes nor finds among its own: inputs, what was kept."""
    forward = computed(step, wanted, given)
    outside = _named(wanted, forward) - {s.target for s in forward}
    return {n for n in outside if arrays[n].dims and arrays[n].role in ("input", "local")}


def _named(wanted: Collection[str], forward: Statements) -> set[str]:
    return {*wanted, *(n for s in forward for n in reads(s))}


def _has(step: Step, wanted: Collection[str], saved: Collection[str]) -> set[str]:
    """Forward values that a sweep which rebuilds the states computes or loads for what it wants."""
    open_ = [s for s in step.statements if s.target not in saved]
    roots = {*wanted, *(s.new for s in step.states)}
    own = {n for s in needed(open_, roots) for n in (s.target, *reads(s))}
    return own | {a.name for a in step.arrays if a.name in wanted}


def _products(
    name: str,
    makers: Mapping[str, Sequence[Statement]],
    arrays: Mapping[str, Array],
    known: Collection[str],
    step: Step,
) -> list[Statement] | None:
    """The statements that make a whole vector of known ones and of scalars; None if others do."""
    own = makers.get(name, ())
    if len(own) != 1 or own[0].over or leaves_part(own[0], arrays[name]):
        return None
    found = [own[0]]
    for source in reads(own[0]):
        if source in known or _is_cheap(source, arrays, step):
            continue
        more = _products(source, makers, arrays, known, step) if arrays[source].dims else None
        if more is None:
            return None
        found += more
    return found


def _is_cheap(name: str, arrays: Mapping[str, Array], step: Step) -> bool:
    """Whether an array is a scalar that is handed on, or that takes no vectors to compute again."""
    return not arrays[name].dims and not _costly(name, arrays, step)


def _costly(name: str, arrays: Mapping[str, Array], step: Step) -> bool:
    """Whether an array is a scalar of the forward that is computed from vectors."""
    if arrays[name].dims:
        return False
    behind = {n for s in needed(step.statements, [name]) for n in (s.target, *reads(s))}
    return any(arrays[n].dims for n in behind)
