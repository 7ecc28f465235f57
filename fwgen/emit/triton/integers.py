"""Which locals of a step hold integers: positions, indices, and what is computed from them."""

from __future__ import annotations

from fwgen.emit.triton.scalars import Printer
from fwgen.emit.triton.text import Text
from fwgen.errors import InternalError
from fwgen.ir.nodes import IndexValue, Load, Position, Statement, Step
from fwgen.ir.walk import scalars


def integer_locals(step: Step) -> frozenset[str]:
    """Locals all of whose definitions are integers."""
    found: set[str] = set()

    def refuse(_: object) -> Text:
        raise InternalError("no text is printed here")

    roles = {array.name: array.role for array in step.arrays}
    definitions: dict[str, list[Statement]] = {}
    for statement in step.statements:
        definitions.setdefault(statement.target, []).append(statement)
    for name, own in definitions.items():
        printer = Printer(refuse, refuse, found, ())  # type: ignore[arg-type]
        constant = all(not list(_loads_or_position(s)) for s in own)
        if not constant and roles[name] == "local" and all(printer.is_whole(s.body) for s in own):
            found.add(name)
    carried = {s.new for s in step.states} | {step.output}
    return frozenset(found - carried)


def _loads_or_position(statement: Statement) -> list[object]:
    return [n for n in scalars(statement.body) if isinstance(n, Load | Position | IndexValue)]
