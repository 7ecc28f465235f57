"""Rows that lie where others lay: a chunk's work space stays in the first level of the cache.

Every array of narrow values has a row per token of the chunk. One may take the memory of another
that nothing reads any more when it is first written, in the tokens' order of every sweep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fwgen.ir.nodes import Array, Statement
from fwgen.ir.walk import loads
from fwgen.schedule.plan import Batch, Nest, Scan, Sweep


@dataclass(frozen=True, slots=True)
class _Use:
    """A statement that reads or writes an array: its phase, and its place in the body of a token.

    `own`: it runs token by token and element by element, and touches no others of the array.
    """

    phase: int
    place: int
    statement: Statement
    own: bool


def shared_rows(
    sweeps: Sequence[Sweep], rows: Sequence[str], arrays: Mapping[str, Array]
) -> dict[str, str]:
    """Which array's memory each of `rows` takes, for those that take any.

    `rows` are local arrays of the work space in order of their declaration; none is carried,
    zeroed first, or met by several sweeps at once. Those that a sweep stores may be taken from:
    then it holds only where there is no tensor to store.
    """
    uses = [_uses(sweep, arrays) for sweep in sweeps]
    stored = {name for sweep in sweeps for name, _ in sweep.stores}
    owners: dict[str, str] = {}
    tenants: dict[str, list[str]] = {}
    for name in rows:
        dims = arrays[name].dims
        fit = [
            owner
            for owner, others in tenants.items()
            if name not in stored
            and arrays[owner].dims == dims
            and all(_gone(found, other, name) for other in others for found in uses)
        ]
        if fit:
            # What was used last lies nearest.
            owners[name] = max(fit, key=lambda o: max(_end(found, tenants[o]) for found in uses))
        tenants.setdefault(owners.get(name, name), []).append(name)
    return owners


def _end(uses: Mapping[str, Sequence[_Use]], names: Collection[str]) -> tuple[int, int]:
    return max(((u.phase, u.place) for n in names for u in uses.get(n, ())), default=(-1, -1))


def _gone(uses: Mapping[str, Sequence[_Use]], old: str, new: str) -> bool:
    """Whether in a sweep nothing touches `old` any more once `new` is written."""
    if old not in uses or new not in uses:
        return True
    # Before that a pair's second token may read the value of the first one, at that token's row.
    first = min((u.phase, u.place) for u in uses[new] if u.statement.target == new)
    if _end(uses, [old]) > first:
        return False
    same = [u for u in uses[old] if u.phase == first[0]]
    opening = [u for u in uses[new] if (u.phase, u.place) == first]
    # In one phase tokens alternate between both, and blocks of lanes may: each element is replaced
    # by the statement that reads it last, or by one after it.
    return all(u.own for u in same) and (not same or all(u.own for u in opening))


def _uses(sweep: Sweep, arrays: Mapping[str, Array]) -> dict[str, list[_Use]]:
    found: dict[str, list[_Use]] = {}
    for number, phase in enumerate(sweep.phases):
        for place, statement, in_nest in _places(phase):
            for name in {load.array for load in loads(statement.body)} | {statement.target}:
                earlier = arrays[name].role == "earlier"
                owner = arrays[name].of if earlier else name
                own = not earlier and _own(statement, name, in_nest)
                found.setdefault(owner, []).append(_Use(number, place, statement, own))
    return found


def _places(phase: Batch | Scan) -> Iterator[tuple[int, Statement, bool]]:
    """The statements of a phase with their places and whether they are part of a nest."""
    if not isinstance(phase, Scan):
        yield from ((n, s, False) for n, s in enumerate(phase.statements))
        return
    last = len(phase.items) - 1
    for number, item in enumerate(phase.items):
        inner = item.statements if isinstance(item, Nest) else (item,)
        # Repairs of a second token run between the first nest and the items after it.
        place = number if number == 0 else number + 1
        yield from ((place, s, isinstance(item, Nest)) for s in inner)
    if phase.pair is not None:
        yield from ((0, s, True) for s in phase.pair.reads)
        yield from ((1, s, False) for s in phase.pair.repairs)
        yield last + 1, phase.pair.write, True


def _own(statement: Statement, name: str, in_nest: bool) -> bool:
    """Whether a statement touches the array `name` only at the element it writes.

    What a nest reads it reads at several elements; what it sums up it stores at its own.
    """
    mine = [load.index for load in loads(statement.body) if load.array == name]
    plain = all(index.variable is not None for index in statement.index)
    if in_nest:
        return not mine and plain
    return plain and not statement.over and all(index == statement.index for index in mine)
