"""Expressions -> values: names, shapes, broadcasting, products. Every fault is reported here.

A method answers None for what has been reported, and passes None on without a second report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Index, Position
from fwgen.language import tree
from fwgen.language.arithmetic import power, remainder
from fwgen.language.broadcast import Broadcaster
from fwgen.language.dims import DimError
from fwgen.language.integers import integer
from fwgen.language.names import did_you_mean, nearest
from fwgen.language.products import matmul
from fwgen.language.source import SourceFile, Span
from fwgen.language.structure import subscript
from fwgen.language.values import NumberError, Value, is_plain, number

MOST_STATEMENTS = 4096
MOST_PARTS = 40_000
COMPARISON_HINT = "a comparison is the first argument of `where`"


class TooLongError(Exception):
    """The rule unrolls to more statements than allowed; already reported."""


@dataclass(slots=True)
class Scope:
    """What a formula sees. A value None belongs to a name whose definition was reported.

    `sizes` are the names of sizes; `states` the values before the token, for `prev` (None inside a
    feature map); `later` the names that some later line assigns.
    """

    values: dict[str, Value | None]
    sizes: Mapping[str, Dim]
    states: Mapping[str, Value] | None = None
    later: frozenset[str] = frozenset()


Call = Callable[["Evaluator", tree.Call], Value | None]


@dataclass(slots=True, kw_only=True)
class Evaluator(Broadcaster):
    """Evaluates expressions in a scope, adding statements to a builder."""

    functions: Mapping[str, Call]
    """What can be called: the functions of the language and feature maps."""
    words: frozenset[str]
    """The functions of the language, whose names nothing else may have."""
    own: frozenset[str]
    """The feature maps that the rule defines."""
    scope: Scope
    file: SourceFile
    """The rule's file, whose lines statements remember."""
    shared: Mapping[str, Value | None]
    """Constants, params and buffers: what a rule's own feature maps see."""
    sizes: Mapping[str, Dim]
    lenient: bool = False
    """Whether part of the rule could not be read, so that an unknown name is no fault."""
    work: list[int] = field(default_factory=lambda: [0, 0])
    """Lines and parts of expressions so far, after unrolling."""
    missing: set[str] = field(default_factory=set)
    """Functions that were called and do not exist; each was reported once."""

    def count(self, span: Span) -> None:
        """One more unrolled line; raises TooLongError when they are too many."""
        self.work[0] += 1
        if max(self.work[0], len(self.builder.statements)) > MOST_STATEMENTS:
            self.error(span, f"the rule unrolls to more than {MOST_STATEMENTS} statements")
            raise TooLongError

    def count_part(self, node: tree.Expression) -> None:
        """One more part of an expression; raises TooLongError when they are too many."""
        self.work[1] += 1
        if self.work[1] > MOST_PARTS:
            what = f"the rule unrolls to more than {MOST_PARTS} names and operations"
            self.error(node.span, what)
            raise TooLongError

    @contextmanager
    def bound(self, name: str, value: int) -> Iterator[None]:
        """A loop variable during one round."""
        self.scope.values[name] = number(value)
        try:
            yield
        finally:
            del self.scope.values[name]

    # ----------------------------------------------------------------- expressions

    def value(self, node: tree.Expression) -> Value | None:
        """The value of an expression."""
        self.count_part(node)
        try:
            match node:
                case tree.Number(_, literal):
                    return number(literal)
                case tree.Name():
                    return self.name(node)
                case tree.Unary(span, "neg", operand):
                    return self.combine("neg", span, self.value(operand))
                case tree.Binary():
                    return self.chain(node)
                case tree.Transpose():
                    return self.transpose(node)
                case tree.Subscript():
                    return self.subscript(node)
                case tree.Call():
                    return self.call(node)
                case tree.Compare() | tree.Logic() | tree.Unary():
                    self.condition(node)
                    self.error(node.span, "a condition stands only in `where`", COMPARISON_HINT)
                case tree.String():
                    self.error(node.span, "a text stands only in `einsum`")
                case tree.Each():
                    self.error(node.span, "`for` in an expression stands only in `concat`")
        except NumberError:
            self.error(node.span, f"`{_text(node.span)}` has no finite value")
        except DimError as fault:
            self.error(node.span, str(fault))
        return None

    def name(self, node: tree.Name) -> Value | None:
        """The latest value of a name."""
        name, known = node.name, self.scope.values
        if name in known:
            found = known[name]
            return None if found is None else self.fresh(found)
        if name == "t":
            if self.scope.states is not None:
                return Value((), Position(), kind="int")
            self.error(node.span, "`t` is not seen inside a feature map", "pass it as an argument")
        elif self.lenient:
            return None
        elif name in self.scope.later:
            self.error(node.span, f"`{name}` is read before it is assigned")
            known[name] = None
        else:
            self.unknown(node)
        return None

    def probe(self, node: tree.Expression) -> None:
        """Evaluate an argument that nothing takes, for its faults only."""
        if isinstance(node, tree.Compare | tree.Logic):
            self.condition(node)
        elif not isinstance(node, tree.String | tree.Each):
            self.value(node)

    def unknown(self, node: tree.Name) -> None:
        """Report a name that nothing defines."""
        self.error(node.span, f"`{node.name}` is not defined", self.meant(node.name))
        self.scope.values[node.name] = None

    def meant(self, name: str) -> str | None:
        """A hint for a name that nothing defines."""
        known = [n for n, value in self.scope.values.items() if value is not None]
        near = nearest(name, known) if self.report.readable else None
        if name in self.functions:
            return f"call it: `{name}(…)`"
        if name in self.scope.sizes:
            same = near is not None and near.lower() == name.lower()
            also = f", or write `{near}`" if same else ""
            return f"the value of a size is `size({name})`{also}"
        if near is not None:
            return f"did you mean `{near}`?"
        if self.calls and self.outside is None:
            hint = did_you_mean(name, self.functions) if self.report.readable else None
            return hint or "a feature map sees its arguments, constants, params and buffers"
        return "numbers are declared under `constants`, tensors under `inputs`, `params`, `buffers`"

    def fresh(self, value: Value) -> Value:
        """The value over index variables of its own."""
        axes = tuple(self.builder.axis(axis.dim) for axis in value.axes)
        indices = [Index.of(axis) for axis in axes]
        return replace(value, axes=axes, body=value.at(indices))

    def chain(self, node: tree.Binary) -> Value | None:
        """`a op b op c …` from the left, without recursion along the chain."""
        spine: list[tree.Binary] = []
        inner: tree.Expression = node
        while isinstance(inner, tree.Binary):
            spine.append(inner)
            inner = inner.left
        left = self.value(inner)
        for step in reversed(spine):
            right = self.value(step.right)
            try:
                left = self.binary(step, left, right)
            except NumberError:
                self.error(step.span, f"`{_text(step.span)}` has no finite value")
                left = None
        return left

    def binary(self, node: tree.Binary, left: Value | None, right: Value | None) -> Value | None:
        """One operator."""
        if left is None or right is None:
            return None
        match node.op:
            case "matmul":
                return matmul(self, node.span, left, right)
            case "pow":
                return power(self, node, left, right)
            case "mod":
                return remainder(self, node, left, right)
        return self.combine(node.op, node.span, left, right)

    # ----------------------------------------------------------------- conditions and parts

    def condition(self, node: tree.Expression) -> Value | None:
        """The condition of a `where`."""
        match node:
            case tree.Unary(span, "not", operand):
                return self.combine("not", span, self.condition(operand))
            case tree.Logic(span, op, operands):
                return self.fold(op, span, [self.condition(part) for part in operands])
            case tree.Compare(span, ops, operands):
                values = [self.value(part) for part in operands]
                values[1:-1] = [self.once(value) for value in values[1:-1]]
                pairs = zip(ops, values, values[1:], strict=False)
                return self.fold("and", span, [self.combine(o, span, a, b) for o, a, b in pairs])
        return self.combine("ne", node.span, self.value(node), number(0))

    def once(self, value: Value | None) -> Value | None:
        """A value that is used twice, stored unless that costs nothing."""
        return value if value is None or is_plain(value) else self.builder.store(value, "u")

    def fold(self, op: str, span: Span, parts: list[Value | None]) -> Value | None:
        """Conditions joined by one operation."""
        result = parts[0]
        for part in parts[1:]:
            result = self.combine(op, span, result, part)
        return result

    # ----------------------------------------------------------------- structure

    def transpose(self, node: tree.Transpose) -> Value | None:
        """`A.T`."""
        value = self.value(node.operand)
        if value is None:
            return None
        if value.view is not None or len(value.axes) != 2:
            hint = "`outer(a, b)` is the matrix of two vectors" if len(value.axes) == 1 else None
            self.error(node.span, f"`.T` is for a matrix, not {self.shape(value)}", hint)
            return None
        return replace(value, axes=value.axes[::-1])

    def call(self, node: tree.Call) -> Value | None:
        """A function of the language or a feature map."""
        name = node.function.name
        if name in self.functions:
            return self.functions[name](self, node)
        for part in (*node.arguments, *(value for _, value in node.keywords)):
            self.probe(part)
        if self.lenient or name in self.missing:
            return None
        self.missing.add(name)
        message, hint = f"there is no function `{name}`", None
        if name in self.scope.values:
            message = f"`{name}` is a value and cannot be called"
        elif self.report.readable:
            hint = did_you_mean(name, self.functions)
            hint = hint or f"your own stand under `feature_map`, as `{name}(x): …`"
        self.error(node.function.span, message, hint)
        return None

    def subscript(self, node: tree.Subscript) -> Value | None:
        """`x[i]`, `x[a:b]`."""
        value = self.value(node.operand)
        return None if value is None else subscript(self, node, value)

    def integer(self, node: tree.Expression) -> Dim | None:
        """An integer expression over constants, loop variables and sizes."""
        return integer(self, node)


def _text(span: Span) -> str:
    start = span.column - 1
    return span.source[start : start + min(span.width, 60)]
