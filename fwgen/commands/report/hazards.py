"""Single formulas that can leave the range of numbers: quotients, roots, exponentials."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fwgen.commands.report.blocks import Code, Line, Math
from fwgen.commands.report.bounds import Bounds
from fwgen.commands.report.matrix import vector
from fwgen.emit.latex import ADD as LATEX_ADD
from fwgen.emit.latex import Latex
from fwgen.ir.nodes import Apply, Const, Load, Scalar, Statement, Step
from fwgen.ir.text import ADD, scalar_text
from fwgen.ir.walk import loads, scalars

LARGEST_EXPONENT = 88


def hazards(step: Step, bounds: Bounds, latex: Latex, decays: Collection[Scalar]) -> list[Line]:
    """One line per formula, in order; each formula once.

    `decays` are the exponentials that are spoken of elsewhere, without their indices.
    """
    exempt = {*decays, *_decays(step)}
    tokens = _from_tokens(step)
    found: dict[str, Line] = {}
    for statement in step.statements:
        for node in scalars(statement.body):
            if not isinstance(node, Apply) or vector(node) in exempt:
                continue
            for key, line in _notes(statement, node, bounds, latex, tokens):
                found.setdefault(key, line)
    return list(found.values())


def _notes(
    statement: Statement, node: Apply, bounds: Bounds, latex: Latex, tokens: frozenset[str]
) -> Iterator[tuple[str, Line]]:
    def shown(part: Scalar) -> Math:
        return Math(scalar_text(part, ADD), latex.scalar(part, LATEX_ADD))

    target: Line = (Code(statement.target),)
    match node:
        case Apply("div", (_, below)) if not never_zero(below, bounds):
            known, part = bounds.of(below), shown(below)
            why = "may be 0" if known.low >= 0 or known.high <= 0 else "may have either sign"
            end = f", which {why}: near 0 the quotient and its gradients grow without bound."
            yield f"/ {part.text}", (*target, " divides by ", part, end)
        case Apply("rsqrt" | "log" as op, (inner,)) if not never_zero(inner, bounds):
            part = shown(inner)
            end = ", which may be 0: nothing keeps the result finite there."
            yield f"{op} {part.text}", (*target, f" takes the {op} of ", part, end)
        case Apply("exp", (inner,)) if bounds.of(inner).high > LARGEST_EXPONENT:
            if tokens.intersection(load.array for load in loads(inner)):
                part = shown(inner)
                end = f": float32 overflows where that exceeds {LARGEST_EXPONENT}."
                yield f"exp {part.text}", (*target, " takes the exponential of ", part, end)


def _decays(step: Step) -> set[Scalar]:
    """Factors directly in the updates of states: what they need is said with the states."""
    found: set[Scalar] = set()
    names = {s.new for s in step.states} | {a.name for a in step.arrays if a.of != a.name}
    for statement in step.statements:
        if statement.target in names:
            parts = (n for n in scalars(statement.body) if isinstance(n, Apply))
            found.update(vector(n) for n in parts if n.op == "exp")
    return found


def _from_tokens(step: Step) -> frozenset[str]:
    """Arrays that depend on an input or a state."""
    found = {a.name for a in step.arrays if a.role in ("input", "state")}
    for statement in step.statements:
        if found.intersection(load.array for load in loads(statement.body)):
            found.add(statement.target)
    return frozenset(found)


def never_zero(expression: Scalar, bounds: Bounds) -> bool:
    """Whether an expression is never 0, by its interval or because an exponential is in it."""
    known = bounds.of(expression)
    if known.low > 0 or known.high < 0:
        return True
    match expression:
        case Apply("exp" | "sigmoid" | "softplus", _):
            return True
        case Apply("mul" | "div" | "neg" | "sqrt" | "square" | "rsqrt", args):
            return all(never_zero(argument, bounds) for argument in args)
        case Apply("add", (Apply("elu", _), Const(value))):
            return value >= 1
        case Apply("add" | "maximum" as op, args):
            positive = op == "maximum" or all(bounds.of(a).low >= 0 for a in args)
            return positive and any(bounds.of(a).low >= 0 and never_zero(a, bounds) for a in args)
        case Apply("select", (_, left, right)):
            return never_zero(left, bounds) and never_zero(right, bounds)
        case Load(array):
            found = bounds.definitions.get(array, [])
            return bool(found) and all(_statement_never_zero(s, bounds) for s in found)
    return False


def _statement_never_zero(statement: Statement, bounds: Bounds) -> bool:
    positive = statement.reduce != "sum" or bounds.of(statement.body).low >= 0
    return positive and never_zero(statement.body, bounds)
