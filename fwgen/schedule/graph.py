"""Dependencies between statements: who writes what, what is needed, what waits for a carry."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from fwgen.ir.nodes import Statement
from fwgen.ir.walk import reads


def needed(statements: Sequence[Statement], wanted: Iterable[str]) -> tuple[Statement, ...]:
    """The statements that `wanted` arrays depend on, in order."""
    alive = set(wanted)
    kept: list[Statement] = []
    for statement in reversed(statements):
        if statement.target in alive:
            alive.update(reads(statement))
            kept.append(statement)
    return tuple(reversed(kept))


def dependents(statements: Sequence[Statement], sources: Collection[str]) -> frozenset[str]:
    """Arrays that depend on `sources`, these included. `statements` are in order."""
    tainted = set(sources)
    for statement in statements:
        if tainted.intersection(reads(statement)):
            tainted.add(statement.target)
    return frozenset(tainted)


def ordered(
    statements: Sequence[Statement], first: Collection[tuple[str, str]] = ()
) -> tuple[Statement, ...] | None:
    """A stable order in which every array is complete before it is read.

    `first` holds pairs (before, after): readers of `before` run ahead of writers of `after`.
    None where that is impossible.
    """
    writers: dict[str, list[int]] = {}
    for number, statement in enumerate(statements):
        writers.setdefault(statement.target, []).append(number)
    waits: list[set[int]] = []
    for statement in statements:
        waits.append({w for name in reads(statement) for w in writers.get(name, ())})
    for before, after in first:
        readers = {n for n, s in enumerate(statements) if before in reads(s)}
        for writer in writers.get(after, ()):
            waits[writer] |= readers - {writer}
    waiting: list[list[int]] = [[] for _ in statements]
    for number, others in enumerate(waits):
        for other in others - {number}:
            waiting[other].append(number)
    missing = [len(others - {number}) for number, others in enumerate(waits)]
    ready = [number for number, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        first_ready = heapq.heappop(ready)
        order.append(first_ready)
        for number in waiting[first_ready]:
            missing[number] -= 1
            if not missing[number]:
                heapq.heappush(ready, number)
    return tuple(statements[n] for n in order) if len(order) == len(statements) else None


def components(edges: dict[int, set[int]]) -> list[list[int]]:
    """Strongly connected components of a small graph, each after those it points to."""
    reach = {node: _reachable(edges, node) for node in edges}
    found: list[list[int]] = []
    for node in edges:
        if any(node in part for part in found):
            continue
        found.append([m for m in edges if m == node or (m in reach[node] and node in reach[m])])
    done: list[list[int]] = []
    while found:
        for part in found:
            others = {m for p in found if p is not part for m in p}
            if not any(reach[node] & others for node in part):
                done.append(part)
                found.remove(part)
                break
    return done


def _reachable(edges: dict[int, set[int]], start: int) -> set[int]:
    seen: set[int] = set()
    stack = list(edges[start])
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(edges[node])
    return seen
