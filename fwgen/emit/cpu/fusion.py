"""Statements on vectors that share one loop, and what lives inside that loop alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fwgen.ir.nodes import Array, Statement, Var
from fwgen.ir.walk import loads, reads
from fwgen.schedule.plan import Batch, Kernel, statements_of


def loops(statements: Iterable[Statement], arrays: Mapping[str, Array]) -> list[list[Statement]]:
    """Statements of a batch, those together that run in one loop over the lanes.

    Each of several computes its own element of a whole vector from scalars and from the same
    element of other vectors, one of which the loop has written: without anything in common, loops
    of their own leave each formula more registers. The order stays as it is.
    """
    found: list[list[Statement]] = []
    for statement in statements:
        lane = _elementwise(statement, arrays)
        last = _elementwise(found[-1][-1], arrays) if found else None
        joined = {s.target for s in found[-1]}.intersection(reads(statement)) if found else set()
        if lane is not None and last is not None and lane.dim == last.dim and joined:
            found[-1].append(statement)
        else:
            found.append([statement])
    return found


def values(kernel: Kernel) -> set[str]:
    """Local arrays that are written and read in one such loop and nowhere else."""
    arrays = {a.name: a for a in kernel.arrays}
    mentions, groups = Counter[str](), list[list[Statement]]()
    for sweep in kernel.sweeps:
        mentions.update(n for c in sweep.carries for n in (c.before, c.after))
        mentions.update((*(a for a, _ in (*sweep.loads, *sweep.stores)), *sweep.spills))
        mentions.update(_mentioned(sweep.finale, arrays))
        for phase in sweep.phases:
            mentions.update(_mentioned(statements_of(phase), arrays))
            if isinstance(phase, Batch):
                groups += loops(phase.statements, arrays)
    mentions.update(n for n, _ in kernel.param_gradients)
    found = [_once(group, arrays) for group in groups if len(group) > 1]
    return {n for inside in found for n, count in inside.items() if count == mentions[n]}


def _once(group: Sequence[Statement], arrays: Mapping[str, Array]) -> Counter[str]:
    """Mentions of the local arrays that a loop writes once, before it reads them."""
    written = Counter(s.target for s in group)
    first = {
        name: n for n, s in reversed(list(enumerate(group))) for name in _mentioned([s], arrays)
    }
    fit = {
        s.target
        for n, s in enumerate(group)
        if written[s.target] == 1 and first[s.target] == n and arrays[s.target].role == "local"
    }
    return Counter(n for n in _mentioned(group, arrays) if n in fit)


def _mentioned(statements: Iterable[Statement], arrays: Mapping[str, Array]) -> list[str]:
    """Targets and what is read, each as often as a statement names it; of a token before, too."""
    names = [n for s in statements for n in (s.target, *{load.array for load in loads(s.body)})]
    return [arrays[n].of if arrays[n].role == "earlier" else n for n in names]


def _elementwise(statement: Statement, arrays: Mapping[str, Array]) -> Var | None:
    """The variable of a statement on one whole vector, element by element, else None."""
    if statement.over or len(statement.index) != 1:
        return None
    lane = statement.index[0].variable
    if lane is None or arrays[statement.target].dims != (lane.dim,):
        return None
    for load in loads(statement.body):
        uses = any(var == lane for index in load.index for _, var in index.terms)
        plain = len(load.index) == 1 and load.index[0].variable == lane
        if uses and not plain:
            return None
        # Another statement of the loop may write it, this one element by element.
        if load.array == statement.target or (load.index and not plain):
            return None
    return lane
