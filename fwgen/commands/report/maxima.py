"""A running maximum, and what its old value is moved by before it is taken."""

from __future__ import annotations

from fwgen.commands.report.conditions import Conditions
from fwgen.ir.nodes import Apply, Const, Load, Scalar, State
from fwgen.ir.walk import loads


def offset(state: State, conditions: Conditions) -> Scalar | None:
    """What is added to the old value of `m = maximum(m + offset, x)`; None for other forms."""
    definitions = conditions.bounds.definitions.get(state.new, [])
    if len(definitions) != 1 or definitions[0].reduce is not None:
        return None
    own = Load(state.old, definitions[0].index)
    found = [part for part in _taken(definitions[0].body, conditions) if _holds(part, state.old)]
    if len(found) != 1:
        return None
    terms = _terms(found[0], conditions)
    others = [term for term in terms if term != own]
    if len(others) != len(terms) - 1 or any(_holds(term, state.old) for term in others):
        return None
    if not others:
        return Const(0.0)
    return others[0] if len(others) == 1 else Apply("add", tuple(others))


def _taken(expression: Scalar, conditions: Conditions) -> list[Scalar]:
    """What a maximum of maxima is taken of."""
    shown = conditions.looked_through(expression)
    if isinstance(shown, Apply) and shown.op == "maximum":
        return [part for argument in shown.args for part in _taken(argument, conditions)]
    return [shown]


def _terms(expression: Scalar, conditions: Conditions) -> list[Scalar]:
    shown = conditions.looked_through(expression)
    match shown:
        case Apply("add", args):
            return [term for argument in args for term in _terms(argument, conditions)]
        case Apply("sub", (left, right)):
            return [*_terms(left, conditions), Apply("neg", (right,))]
    return [expression]


def _holds(expression: Scalar, array: str) -> bool:
    return any(load.array == array for load in loads(expression))
