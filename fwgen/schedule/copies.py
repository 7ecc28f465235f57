"""Matrix states that read each other's old values: a copy breaks the circle.

    A = A + prev(B)
    B = B + prev(A)

A matrix is replaced in its place, so whichever of the two comes first would overwrite what the
other one still reads. So does a matrix that is made of other elements of its own: `W = W.T`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fwgen.ir.fresh import Names
from fwgen.ir.nodes import Array, Index, Load, Scalar, State, Statement, Step, Var
from fwgen.ir.walk import loads, reads, rewrite
from fwgen.schedule.graph import ordered


def part_states(step: Step) -> Step:
    """The same step; some order of its statements reads every old matrix before it is replaced."""
    waiting = [s for s in step.states if len(step.array(s.old).dims) > 1]
    for state in waiting:
        if moves(step.statements, state.old, state.new):
            step = _copied(step, state, own=True)
    while waiting and ordered(step.statements, _swaps(step)) is None:
        tried = [_copied(step, state) for state in waiting]
        good = [n for n, s in enumerate(tried) if ordered(s.statements, _swaps(s)) is not None]
        chosen = good[0] if good else 0
        step = tried[chosen]
        del waiting[chosen]
    return step


def _swaps(step: Step) -> list[tuple[str, str]]:
    return [(s.old, s.new) for s in step.states if len(step.array(s.old).dims) > 1]


def moves(statements: Sequence[Statement], old: str, new: str) -> bool:
    """Whether the new matrix cannot replace the old one element by element, as it is made.

    It can where one statement alone reads the old one for it, at the element that it writes.
    """
    makers = [s for s in statements if s.target == new and old in reads(s)]
    return len(makers) > 1 or any(
        load.index != s.index for s in makers for load in loads(s.body) if load.array == old
    )


def _copied(step: Step, state: State, own: bool = False) -> Step:
    """The step with a copy of an old state, for all but the statements that make the new one.

    With `own` for these, too.
    """
    old = step.array(state.old)
    name = Names(array.name for array in step.arrays).fresh(f"{state.old}_kept")
    index = tuple(Index.of(Var(f"i{n}", dim)) for n, dim in enumerate(old.dims))
    copy = Statement(name, index, Load(state.old, index))

    def change(node: Scalar) -> Scalar:
        same = isinstance(node, Load) and node.array == state.old
        return Load(name, node.index) if same and isinstance(node, Load) else node

    statements = tuple(
        s
        if (s.target == state.new and not own) or state.old not in reads(s)
        else replace(s, body=rewrite(s.body, change))
        for s in step.statements
    )
    arrays = (*step.arrays, Array(name, old.dims, "local"))
    return replace(step, arrays=arrays, statements=(copy, *statements))
