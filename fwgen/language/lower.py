"""Declarations -> Step IR: runs the lines of a rule once, with arrays instead of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Apply, Array, Load, Role, Scalar, State, Statement, Step
from fwgen.language import tree
from fwgen.language.builder import Builder
from fwgen.language.declarations import Declarations, Tensor
from fwgen.language.dims import DimError, Solver
from fwgen.language.evaluate import Call, Evaluator, Scope, TooLongError
from fwgen.language.features import FeatureMap, call_map, probe_map
from fwgen.language.functions import FUNCTIONS
from fwgen.language.grammar import parse
from fwgen.language.short_maps import completed
from fwgen.language.source import Report, Span
from fwgen.language.statements import assignable, keeps_shape, run, storable, value_of
from fwgen.language.values import Value, number

ROLES: dict[str, Role] = {"input": "input", "param": "param", "buffer": "buffer", "state": "state"}


@dataclass(frozen=True, slots=True)
class Formulas:
    """The parsed text of a rule: `None` for what could not be read."""

    update: tuple[tree.Statement, ...] | None
    output: tuple[tree.Statement, ...] | None
    maps: Mapping[str, FeatureMap]


def formulas(found: Declarations, shipped: Mapping[str, FeatureMap], report: Report) -> Formulas:
    """Parse every formula of a rule; its own maps come before the shipped ones."""
    maps = dict(shipped)
    callable_ = {*shipped, *found.maps} - found.tensors.keys() - found.constants.keys()
    for name, text in found.maps.items():
        body = parse(text.text, report)
        if name in found.faulty:
            body = None
        if body is not None and text.parameters:
            body = completed(body, text.parameters[0], callable_ - {name})
        maps[name] = FeatureMap(name, text.parameters, body)
    update = None if found.update is None else parse(found.update, report)
    output = None if found.output is None else parse(found.output, report)
    return Formulas(update, output, maps)


def step_of(found: Declarations, read: Formulas, report: Report) -> Step | None:
    """The rule as Step IR, or None when something was reported."""
    rule = _Rule(found, read, report)
    try:
        output = rule.run()
        rule.ev.count(output_span(found))
        step = None if report.errors or output is None else rule.step(output)
        rule.unused_maps()
    except TooLongError:
        return None
    except DimError as fault:  # not inside an expression, which would have said where
        report.error(Span(found.file, max(1, rule.builder.line)), str(fault))
    return None if report.errors else step


def output_span(found: Declarations) -> Span:
    """Where the output stands."""
    return found.output.span() if found.output is not None else Span(found.file)


class _Rule:
    """One rule while it is being lowered."""

    def __init__(self, found: Declarations, read: Formulas, report: Report) -> None:
        self.found = found
        self.read = read
        self.report = report
        states = found.of("state")
        self.states = {tensor.name: tensor for tensor in states}
        self.locals: dict[str, Value] = {}
        self.output_phase = False
        self.mark = 0
        lenient = found.incomplete or read.update is None
        solver = Solver(_inferable(found), lambda: lenient or bool(report.errors))
        self.builder = Builder(self._names(), solver)
        values = {t.name: self._declared(t) for t in found.tensors.values()}
        constants = {name: number(value) for name, value in found.constants.items()}
        fixed = {t.name for t in found.tensors.values() if t.kind in ("param", "buffer")}
        faulty: dict[str, Value | None] = dict.fromkeys(found.faulty)
        shared = {**constants, **{name: values[name] for name in fixed}, **faulty}
        self.old = {name: values[name] for name in self.states}
        self.latest = dict(self.old)
        sizes = {n: Dim.of(n) for t in found.tensors.values() for d in t.dims for n in d.names}
        visible = {**constants, **values, **faulty}
        scope = Scope(visible, sizes, self.old, self._later())
        self.ev = Evaluator(
            builder=self.builder,
            report=report,
            functions=_callable(read.maps),
            words=frozenset(FUNCTIONS),
            own=frozenset(found.maps),
            scope=scope,
            file=found.file,
            shared=shared,
            sizes=sizes,
            lenient=lenient,
        )

    def _names(self) -> set[str]:
        blocks = (self.read.update or ()) + (self.read.output or ())
        targets = {target.name for target in tree.assignments(blocks)}
        return targets | set(self.found.spans)

    def _later(self) -> frozenset[str]:
        blocks = (self.read.update or ()) + (self.read.output or ())
        return frozenset(target.name for target in tree.assignments(blocks))

    def _declared(self, tensor: Tensor) -> Value:
        return self.builder.declare(tensor.name, tensor.dims, ROLES[tensor.kind])

    def unused_maps(self) -> None:
        """Report faults of maps that nothing calls, as far as they don't depend on an argument."""
        seen = _reached(self.read)
        for name in self.found.maps:
            if name not in seen and self.read.maps[name].body is not None:
                probe_map(self.ev, self.found.spans[name], self.read.maps[name])

    def run(self) -> Value | None:
        """Run `update` and `output`; the value of the output."""
        if self.read.update is not None:
            run(self.ev, self.read.update, self.assign)
        self._all_assigned()
        self.output_phase = True
        if not self.read.output:
            return None
        self.mark = len(self.builder.statements)
        value = value_of(self.ev, self.read.output, self.assign)
        return None if value is None else self._result(value)

    def _result(self, value: Value) -> Value:
        last = self.read.output[-1] if self.read.output else None
        if last is not None and last.span.file is self.found.file:
            self.builder.line = last.span.line
        name = "y" if "y" not in self.builder.reserved else "out"
        return self.builder.assign(self.builder.unique(name), value, self.mark)

    def _all_assigned(self) -> None:
        if self.read.update is None:
            return
        assigned = {target.name for target in tree.assignments(self.read.update)}
        for name, tensor in self.states.items():
            idle = self.latest[name] is self.old[name] and not self.report.errors
            if (name not in assigned or idle) and name not in self.found.faulty:
                hint = "a quantity that never changes is a param or a buffer"
                message = f"the state `{name}` is never assigned in `update`"
                self.report.error(tensor.span, message, hint)

    def assign(self, node: tree.Assign, value: Value | None) -> None:
        """One assignment of `update` or `output`."""
        name, target = node.target.name, node.target
        mark, self.mark = self.mark, len(self.builder.statements)
        if not assignable(self.ev, target, {*self.states, *self.locals, *self.found.faulty}):
            return
        if name in self.states and self.output_phase:
            self.report.error(
                target.span, f"the state `{name}` is assigned in `output`", "assign it in `update`"
            )
            return
        known = self.old.get(name) or self.locals.get(name)
        good = value is not None and storable(self.ev, node.value.span, value)
        if good and value is not None and known is not None:
            good = keeps_shape(self.ev, target, known, value)
        if not good or value is None:
            self.ev.scope.values.setdefault(name, known)
            return
        if known is not None:
            value = self.builder.of_dims(value, known.dims)
        self.ev.scope.values[name] = self.store(name, value, mark)
        self.mark = len(self.builder.statements)

    def store(self, name: str, value: Value, mark: int) -> Value:
        """A new version of a state or local."""
        if name in self.states:
            self.latest[name] = self.builder.assign(name, value, mark)
            return self.latest[name]
        if value.kind == "int" and not value.axes:
            self.locals.setdefault(name, value)
            return value
        self.locals[name] = self.builder.assign(name, value, mark)
        return self.locals[name]

    def step(self, output: Value) -> Step:
        """The finished step."""
        arrays, statements = self.builder.finish()
        states = tuple(
            State(name, name, _array(self.latest[name]), tensor.init)
            for name, tensor in self.states.items()
        )
        solution = self.builder.solver.solution
        dims = tuple(sorted((name, dim) for name, dim in solution.items()))
        arrays = _integers(arrays, statements)
        name, requires = self.found.name, tuple(self.requirements())
        return Step(name, arrays, statements, states, _array(output), dims, requires)

    def requirements(self) -> Iterator[tuple[Dim, int]]:
        """What the sizes of a call must satisfy; a fault where no sizes can."""
        for quantity, line in self.builder.requirements.items():
            dim = self.builder.solver.resolve(quantity)
            if dim.constant is None:
                yield dim, line
            elif dim.constant < 0:
                span = Span(self.found.file, line)
                self.report.error(span, "a subscript of this line lies outside its axis")


def _callable(maps: Mapping[str, FeatureMap]) -> dict[str, Call]:
    """Feature maps and functions by name; a map of the rule hides no function."""
    found: dict[str, Call] = {name: partial(call_map, called=m) for name, m in maps.items()}
    return found | {name: row.call for name, row in FUNCTIONS.items()}


def _array(value: Value) -> str:
    assert isinstance(value.body, Load)
    return value.body.array


def _inferable(found: Declarations) -> frozenset[str]:
    """Sizes that only a feature map may produce: those of states that no input has."""

    def names(kinds: tuple[str, ...]) -> set[str]:
        tensors = (t for t in found.tensors.values() if t.kind in kinds)
        return {name for t in tensors for dim in t.dims for name in dim.names}

    return frozenset(names(("state",)) - names(("input",)))


def _integers(arrays: tuple[Array, ...], statements: tuple[Statement, ...]) -> tuple[Array, ...]:
    """Mark the inputs that occur in conditions only: these may hold integers."""
    inside: set[str] = set()
    outside: set[str] = set()

    def visit(node: Scalar, condition: bool) -> None:
        match node:
            case Load(array, _):
                (inside if condition else outside).add(array)
            case Apply("select", (test, *branches)):
                visit(test, True)
                for branch in branches:
                    visit(branch, condition)
            case Apply(_, args):
                for arg in args:
                    visit(arg, condition)

    for statement in statements:
        visit(statement.body, False)
    only = inside - outside
    return tuple(
        replace(a, floating=False) if a.role == "input" and a.name in only else a for a in arrays
    )


def unused(found: Declarations, read: Formulas, report: Report) -> None:
    """Warn of declarations that no formula reads."""
    seen, sizes = _reached(read), _words_of_sizes(found)
    for name, span in found.spans.items():
        tensor = found.tensors.get(name)
        if name in seen or (tensor is not None and tensor.kind == "state"):
            continue
        kind = "feature map" if name in found.maps else tensor.kind if tensor else "constant"
        if kind == "constant" and name in sizes:
            continue
        report.warn(span, f"the {kind} `{name}` is never used")


def _reached(read: Formulas) -> set[str]:
    """Names that occur in the formulas, through the maps that these call."""
    seen: set[str] = set()
    todo: list[tuple[tuple[str, ...], tuple[tree.Statement, ...]]]
    todo = [((), read.update or ()), ((), read.output or ())]
    while todo:
        own, body = todo.pop()
        for node in tree.expressions(body):
            name = node.name if isinstance(node, tree.Name) else None
            if isinstance(node, tree.Call):
                name = node.function.name
            if name is None or name in seen or name in own:
                continue
            seen.add(name)
            if name in read.maps:
                called = read.maps[name]
                todo.append((called.parameters, called.body or ()))
    return seen


def _words_of_sizes(found: Declarations) -> set[str]:
    """The names that stand in declared dims, those of constants included."""
    places = (span for t in found.tensors.values() for span in t.dim_spans)
    texts = (p.source[p.column - 1 : p.column - 1 + p.width] for p in places)
    return {word for text in texts for word in re.findall(r"\w+", text)}
