"""Which states depend on which: strongly connected components, in topological order."""

from __future__ import annotations

from fwgen.ir.nodes import Step
from fwgen.ir.walk import reads


def sources(step: Step) -> dict[str, frozenset[str]]:
    """Per array: the states whose value before the token it depends on."""
    found = {array.name: frozenset[str]() for array in step.arrays}
    found.update({state.old: frozenset({state.name}) for state in step.states})
    for statement in step.statements:
        parts = [found[name] for name in reads(statement)]
        found[statement.target] = found[statement.target].union(*parts)
    return found


def components(step: Step) -> tuple[tuple[str, ...], ...]:
    """The stages of a step: states that feed each other share one; a stage comes after those that
    it depends on. Within a stage, and where the order is free, states keep their declared order.
    """
    needs = sources(step)
    direct = {state.name: needs[state.new] for state in step.states}
    reach = {name: _closure(name, direct) for name in direct}
    groups: list[tuple[str, ...]] = []
    placed: set[str] = set()
    while len(placed) < len(direct):
        for name in direct:
            group = tuple(n for n in direct if n == name or (n in reach[name] and name in reach[n]))
            outside = reach[name] - set(group)
            if name not in placed and outside <= placed:
                groups.append(group)
                placed.update(group)
                break
    return tuple(groups)


def _closure(start: str, direct: dict[str, frozenset[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(direct[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(direct[name])
    return found
