"""Statements and their carries in, batches and scans out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fwgen.errors import InternalError
from fwgen.ir.carries import Carry
from fwgen.ir.nodes import Array, Statement
from fwgen.ir.walk import reads
from fwgen.schedule.graph import components, dependents, needed, ordered
from fwgen.schedule.nests import body
from fwgen.schedule.plan import Batch, Scan


@dataclass(frozen=True, slots=True)
class _Form:
    """What all scans of a sweep have in common."""

    reverse: bool
    history: bool
    lane_axis: int
    stored: tuple[str, ...]


def phases(
    statements: Sequence[Statement],
    carries: Sequence[Carry],
    arrays: Mapping[str, Array],
    stored: Collection[str],
    *,
    reverse: bool = False,
    history: bool = False,
    lane_axis: int = 0,
    together: Collection[str] = (),
) -> tuple[Batch | Scan, ...]:
    """Sort statements into batches and scans.

    A statement is part of a scan when the carry needs it, or when it touches a matrix of the scan
    (matrices have no row per token). `stored` arrays get a row per token whatever their rank.
    `together` names more matrices; all that touch one then run in one scan with all carries.
    Every array is complete before a later phase reads it, and a matrix that a scan carries is read
    and written in that scan alone.
    """
    form = _Form(reverse, history, lane_axis, tuple(stored))
    choices = [] if together else [_groups(statements, carries)]
    for wanted in (*choices, [list(carries)]):
        groups, members = _parted(statements, wanted, arrays, stored, together)
        owner = {index: number for number, own in enumerate(members) for index in own}
        found = _sequence(statements, groups, owner, arrays, form)
        if found is not None:
            return found
    raise InternalError("the statements of a token cannot be divided into batches and scans")


def _parted(
    statements: Sequence[Statement],
    groups: list[list[Carry]],
    arrays: Mapping[str, Array],
    stored: Collection[str],
    together: Collection[str],
) -> tuple[list[list[Carry]], list[list[int]]]:
    """The groups and the statements of their scans.

    Groups that have a statement in common are made one: it has matrices of both.
    """
    while True:
        members = [_scan_members(statements, g, arrays, stored, together) for g in groups]
        known = [set(own) for own in members]
        pairs = [(a, b) for b in range(len(groups)) for a in range(b) if known[a] & known[b]]
        if not pairs:
            return groups, members
        a, b = pairs[0]
        rest = [group for n, group in enumerate(groups) if n not in (a, b)]
        groups = [*rest[:a], [*groups[a], *groups[b]], *rest[a:]]


def _groups(statements: Sequence[Statement], carries: Sequence[Carry]) -> list[list[Carry]]:
    """Carries that depend on each other, in topological order."""
    edges: dict[int, set[int]] = {}
    for number, carry in enumerate(carries):
        used = {carry.after}
        for statement in needed(statements, [carry.after]):
            used.update(reads(statement))
        edges[number] = {
            other
            for other, c in enumerate(carries)
            if c.before in used or (c.after in used and c is not carry)
        }
    return [[carries[n] for n in part] for part in components(edges)]


def _scan_members(
    statements: Sequence[Statement],
    group: Sequence[Carry],
    arrays: Mapping[str, Array],
    stored: Collection[str],
    together: Collection[str],
) -> list[int]:
    """Positions of the statements that belong to the scan of `group`."""
    before = {carry.before for carry in group}
    after = {carry.after for carry in group}
    moving = dependents(statements, before)
    required = {id(s) for s in needed(statements, after) if moving.intersection(reads(s))}
    required |= {id(s) for s in statements if s.target in after}
    matrices = {name for name in before | after if len(arrays[name].dims) > 1}
    matrices.update(together)
    mentions = [(statement.target, *reads(statement)) for statement in statements]
    found: set[int] = set()
    size = -1
    while size < len(found):
        size = len(found)
        for number, statement in enumerate(statements):
            if not matrices.isdisjoint(mentions[number]) or id(statement) in required:
                found.add(number)
            if number in found:
                named = [arrays[n] for n in mentions[number]]
                matrices |= {a.name for a in named if _inner_matrix(a)} - set(stored)
        found |= _between(statements, found, before)
    return sorted(found)


def _inner_matrix(array: Array) -> bool:
    """Whether an array is a matrix that statements of this token make."""
    return len(array.dims) > 1 and array.role == "local"


def _between(
    statements: Sequence[Statement], members: Collection[int], before: Collection[str]
) -> set[int]:
    """Statements that wait for a member, at this token or the one before, and one for them."""
    inside = [statements[n] for n in members]
    later = dependents(statements, {*before, *(s.target for s in inside)})
    wanted = {id(s) for s in needed(statements, {name for s in inside for name in reads(s)})}
    return {
        number
        for number, statement in enumerate(statements)
        if id(statement) in wanted and later.intersection(reads(statement))
    }


def _sequence(
    statements: Sequence[Statement],
    groups: Sequence[Sequence[Carry]],
    owner: Mapping[int, int],
    arrays: Mapping[str, Array],
    form: _Form,
) -> tuple[Batch | Scan, ...] | None:
    """Alternate batches and scans until every statement is placed; None where that cannot be."""
    writers: dict[str, set[int]] = {}
    for number, statement in enumerate(statements):
        writers.setdefault(statement.target, set()).add(number)
    # The row of an old value is the new value of the token before: it exists once the scan has run.
    follows = {c.before: (c.after, g) for g, group in enumerate(groups) for c in group}
    waits: list[set[int]] = []
    for number, statement in enumerate(statements):
        names = reads(statement)
        for name in names:
            after, group_ = follows.get(name, ("", -1))
            if group_ >= 0 and owner.get(number) != group_:
                names = [*names, after]
        waits.append(set().union(*(writers.get(n, set()) for n in names)))
    placed: set[int] = set()
    done: list[Batch | Scan] = []
    pending = list(range(len(groups)))
    while len(placed) < len(statements):
        free = [n for n in range(len(statements)) if n not in owner and n not in placed]
        batch = [statements[n] for n in _batch(free, statements, arrays, waits, placed)]
        if batch:
            done.append(Batch(tuple(batch)))
        ready = [g for g in pending if _ready(g, owner, waits, placed)]
        if not ready and len(placed) < len(statements):
            return None
        if ready:
            group = ready[0]
            pending.remove(group)
            members = [n for n, g in owner.items() if g == group]
            placed.update(members)
            inside = [statements[n] for n in sorted(members)]
            done.append(_scan(inside, groups[group], arrays, form))
    return tuple(done)


def _batch(
    free: Sequence[int],
    statements: Sequence[Statement],
    arrays: Mapping[str, Array],
    waits: Sequence[set[int]],
    placed: set[int],
) -> list[int]:
    """Those of `free` that wait for nothing else, in order; they count as placed.

    Scalars of a token are computed for many tokens at once and rows for one after the other, in
    loops of their own: of one kind come as many as can, then of the other.
    """
    left, found, stalled = list(free), list[int](), 0
    scalars = True
    while stalled < 2:
        scalars, waiting = not scalars, list[int]()
        for number in left:
            statement = statements[number]
            scalar = not arrays[statement.target].dims and not statement.over
            if scalar == scalars and waits[number] <= placed:
                placed.add(number)
                found.append(number)
            else:
                waiting.append(number)
        stalled = 0 if len(waiting) < len(left) else stalled + 1
        left = waiting
    return found


def _ready(group: int, owner: Mapping[int, int], waits: list[set[int]], placed: set[int]) -> bool:
    members = {n for n, g in owner.items() if g == group}
    return all(waits[n] <= placed | members for n in members)


def _scan(
    statements: Sequence[Statement],
    carries: Sequence[Carry],
    arrays: Mapping[str, Array],
    form: _Form,
) -> Scan:
    """Order the body so that an old matrix is read before the new one replaces it."""
    swaps = [(c.before, c.after) for c in carries if len(arrays[c.before].dims) > 1]
    order = ordered(statements, () if form.history else swaps)
    if order is None:
        raise InternalError("a state is read after its replacement was needed")
    items, rotated, split = body(order, carries, arrays, form.stored, form.lane_axis)
    return Scan(tuple(carries), items, form.reverse, rotated, split, form.history)
