"""Loops: `for` blocks and comprehensions, unrolled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fwgen.language import tree
from fwgen.language.names import fault_of
from fwgen.language.values import Value

if TYPE_CHECKING:
    from fwgen.language.evaluate import Evaluator

LONGEST = 4096


def rounds(ev: Evaluator, node: tree.Range) -> range | None:
    """The numbers that a loop runs over."""
    bounds = [0]
    for part in (node.start, node.stop):
        if part is None:
            continue
        bound = ev.integer(part)
        if bound is None:
            return None
        number = ev.builder.solver.resolve(bound).constant
        if number is None:
            message = f"`range` ends at `{bound}`, which is not a constant"
            ev.error(node.span, message, "whole numbers: written out, or under `constants`")
            return None
        bounds.append(number)
    count = bounds[-1] - bounds[-2]
    if count < 0:
        ev.error(node.span, f"`range` ends at {bounds[-1]}, before its start {bounds[-2]}")
        return None
    if count > LONGEST:
        ev.error(node.span, f"`range` has {count} rounds; at most {LONGEST} are unrolled")
        return None
    return range(bounds[-2], bounds[-1])


def free(ev: Evaluator, variable: tree.Name) -> bool:
    """Whether a loop variable shadows nothing; reports where it does."""
    name, scope = variable.name, ev.scope
    fault = fault_of(name, ev.words)
    if name in scope.values or name in scope.later or name in ev.own:
        fault = f"the loop variable `{name}` shadows another name"
    if fault:
        ev.error(variable.span, fault)
    return fault is None


def each(ev: Evaluator, node: tree.Each) -> list[Value | None]:
    """The values of a comprehension; [None] when it was reported."""
    numbers = rounds(ev, node.range)
    if not free(ev, node.variable) or numbers is None:
        return [None]
    if not numbers:
        ev.error(node.range.span, "`range` is empty: nothing to join")
        return [None]
    found: list[Value | None] = []
    for number in numbers:
        with ev.bound(node.variable.name, number):
            ev.count(node.span)
            found.append(ev.value(node.element))
        if found[-1] is None:
            break
    return found
