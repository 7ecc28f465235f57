"""Blocks of lines: assignments, loops, and the value of the last line."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from fwgen.language import tree
from fwgen.language.evaluate import Evaluator
from fwgen.language.names import fault_of
from fwgen.language.source import Span
from fwgen.language.unroll import free, rounds
from fwgen.language.values import Value

Assigner = Callable[[tree.Assign, Value | None], None]


def run(ev: Evaluator, statements: tuple[tree.Statement, ...], assign: Assigner) -> None:
    """Run assignments and loops; any other line is a fault."""
    for statement in statements:
        if statement.span.file is ev.file and ev.outside is None:
            ev.builder.line = statement.span.line
        ev.count(statement.span)
        match statement:
            case tree.Assign(_, _, value):
                assign(statement, ev.value(value))
            case tree.For():
                _loop(ev, statement, assign)
            case tree.Broken(_, names):
                _unknown(ev, names)
            case tree.Evaluate(span, value):
                if ev.value(value) is not None or not ev.report.has(span):
                    hint = "assign it to a name, or leave it out"
                    ev.error(span, "this line computes a value that nothing uses", hint)


def _unknown(ev: Evaluator, names: Iterable[str]) -> None:
    """Note names that only a broken line assigns; others stay what they are, as shapes do."""
    for name in names:
        ev.scope.values.setdefault(name, None)


def _loop(ev: Evaluator, node: tree.For, assign: Assigner) -> None:
    numbers = rounds(ev, node.range)
    if not free(ev, node.variable) or numbers is None:
        _unknown(ev, (name.name for name in tree.assignments(node.body)))
        return
    for number in numbers:
        with ev.bound(node.variable.name, number):
            run(ev, node.body, assign)


def value_of(
    ev: Evaluator, statements: tuple[tree.Statement, ...], assign: Assigner
) -> Value | None:
    """Run a block whose last line is its value."""
    *lines, last = statements
    run(ev, tuple(lines), assign)
    match last:
        case tree.Evaluate(span, value):
            if span.file is ev.file and ev.outside is None:
                ev.builder.line = span.line
            result = ev.value(value)
            return result if result is not None and storable(ev, span, result) else None
        case tree.Broken():
            return None
    run(ev, (last,), assign)
    ev.error(last.span, "the last line is the value, not an assignment")
    return None


def storable(ev: Evaluator, span: Span, value: Value) -> bool:
    """Whether a value may be assigned or returned: views may not."""
    if value.view is not None:
        hint = "combine it with a matrix first"
        ev.error(span, f"a view (`{value.view}`) alone cannot be assigned or returned", hint)
    return value.view is None


def keeps_shape(ev: Evaluator, target: tree.Name, old: Value, new: Value) -> bool:
    """Whether a name keeps its shape; reports where not."""
    equal = ev.builder.solver.equal
    if len(old.axes) == len(new.axes) and all(
        equal(a, b) for a, b in zip(old.dims, new.dims, strict=True)
    ):
        return True
    if len(old.axes) == len(new.axes) and not ev.builder.solver.news(old.dims, new.dims):
        return False
    message = f"`{target.name}` is {ev.shape(old)} and cannot become {ev.shape(new)}"
    ev.error(target.span, message)
    return False


def assignable(ev: Evaluator, target: tree.Name, own: Container[str]) -> bool:
    """Whether a name may be assigned: one of `own`, or a new name."""
    name = target.name
    fault = fault_of(name, ev.words)
    if name in ev.own:
        fault = f"`{name}` is a feature map and cannot be assigned"
    elif name in ev.scope.values and name not in own and ev.scope.values[name] is not None:
        fault = f"`{name}` cannot be assigned: it is not a state or a local"
    if fault:
        ev.error(target.span, fault)
    return fault is None
