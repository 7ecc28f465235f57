"""Scalar expressions of Step IR as Triton tensor expressions; element accesses are left to a hook."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fwgen.emit.triton.functions import DIRECT
from fwgen.emit.triton.lanes import Place
from fwgen.emit.triton.text import (
    ADD,
    AND,
    COMPARE,
    MUL,
    OR,
    UNARY,
    Text,
    binary,
    call,
    joined,
    number,
    size,
    where,
)
from fwgen.ir.nodes import Apply, Const, Index, IndexValue, Load, Position, Scalar, Size

_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_LOGIC = {"and": ("&", AND), "or": ("|", OR)}
_POWERS = {-1.0: "1.0 / {}", 0.5: "tl.sqrt({})", -0.5: "tl.rsqrt({})"}


@dataclass
class Printer:
    """Prints expressions; `real` gives floats, `whole` integers (positions, indices, flags).

    `element` prints an access, `place` an index expression. `integers` names integer arrays,
    `flags` inputs that may hold integers. Names of helpers that the text calls go to `used`.
    """

    element: Callable[[Load], Text]
    place: Callable[[Index], Place]
    integers: Collection[str]
    flags: Collection[str]
    used: set[str] = field(default_factory=set)

    def is_whole(self, expression: Scalar, flags: bool = False) -> bool:
        """Whether all values are integers; `flags` counts inputs that may hold some."""
        match expression:
            case Const(value):
                return isinstance(value, int)
            case Size() | Position() | IndexValue():
                return True
            case Load(array):
                return array in self.integers or (flags and array in self.flags)
            case Apply("select", (_, yes, no)):
                return self.is_whole(yes, flags) and self.is_whole(no, flags)
            case Apply("add" | "sub" | "mul" | "neg" | "mod" | "stop_gradient", args):
                return all(self.is_whole(a, flags) for a in args)
            case _:
                return False

    def real(self, expression: Scalar) -> Text:
        """The expression as floats."""
        match expression:
            case Const(value):
                return number(float(value))
            case Load(array):
                text = self.element(expression)
                return call("tl.cast", text, "tl.float32") if array in self.integers else text
            case Apply("select" | "add" | "sub" | "mul" | "neg" | "mod" | "stop_gradient"):
                if self.is_whole(expression):
                    return call("tl.cast", self.whole(expression), "tl.float32")
                return self.apply(expression, self.real)
            case Apply():
                return self.apply(expression, self.real)
            case _:
                return call("tl.cast", self.whole(expression), "tl.float32")

    def whole(self, expression: Scalar) -> Text:
        """The expression as integers."""
        match expression:
            case Const(value):
                return Text(str(value), UNARY if value < 0 else UNARY + 1)
            case Size(dim):
                return size(dim)
            case Position():
                return Text("t")
            case IndexValue(index):
                return self.place(index).text
            case Load():
                return self.element(expression)
            case Apply("mod", (a, b)):
                self.used.add("wrap")
                return call("wrap", self.whole(a), self.whole(b))
            case _:
                return self.apply(expression, self.whole)

    def condition(self, expression: Scalar) -> Text:
        """A truth value."""
        if not isinstance(expression, Apply):
            return binary("!=", COMPARE, self.real(expression), number(0.0))
        op, args = expression.op, expression.args
        if op in _LOGIC:
            sign, level = _LOGIC[op]
            return joined(sign, level, [self.condition(a) for a in args])
        if op == "not":
            return binary("==", COMPARE, self.condition(args[0]), Text("0"))
        if op == "select":
            return where(*map(self.condition, args))
        if op not in _COMPARISONS:
            return binary("!=", COMPARE, self.real(expression), number(0.0))
        whole = all(self.is_whole(a, flags=True) for a in args)
        a, b = (self.whole(a) if whole else self.real(a) for a in args)
        return binary(_COMPARISONS[op], COMPARE, a, b)

    def apply(self, expression: Apply, operand: Callable[[Scalar], Text]) -> Text:
        """An operation, its operands printed by `operand`."""
        op, args = expression.op, expression.args
        match op:
            case "add":
                return self._sum(args, operand)
            case "sub":
                return binary("-", ADD, operand(args[0]), operand(args[1]))
            case "mul":
                return joined("*", MUL, [operand(a) for a in args])
            case "div":
                return binary("/", MUL, operand(args[0]), operand(args[1]))
            case "neg":
                return Text(f"-{operand(args[0]).at(UNARY)}", UNARY)
            case "stop_gradient":
                return operand(args[0])
            case "select":
                return where(self.condition(args[0]), operand(args[1]), operand(args[2]))
            case "pow":
                return self._power(args)
            case "mod":
                self.used.add("remainder")
                return call("remainder", *map(self._tensor, args))
            case _ if op in DIRECT:
                return call(DIRECT[op], *map(self._tensor, args))
            case _:
                self.used.add(op)
                return call(op, *map(self._tensor, args))

    def _sum(self, args: tuple[Scalar, ...], operand: Callable[[Scalar], Text]) -> Text:
        total = operand(args[0])
        for argument in args[1:]:
            if isinstance(argument, Apply) and argument.op == "neg":
                total = binary("-", ADD, total, operand(argument.args[0]))
            else:
                total = binary("+", ADD, total, operand(argument))
        return total

    def _power(self, args: tuple[Scalar, ...]) -> Text:
        base, exponent = args
        value = float(exponent.value) if isinstance(exponent, Const) else math.nan
        if value in _POWERS:
            text = self._tensor(base)
            division = value == -1.0
            return Text(_POWERS[value].format(text.at(UNARY) if division else text), MUL if division else UNARY + 1)
        if value == 2.0:
            self.used.add("square")
            return call("square", self._tensor(base))
        self.used.add("power")
        return call("power", self._tensor(base), self._tensor(exponent))

    def _tensor(self, expression: Scalar) -> Text:
        """An argument of a function, which must not be a bare Python number."""
        if isinstance(expression, Const):
            return call("tl.full", "()", number(float(expression.value)), "tl.float32")
        return self.real(expression)


_ZERO_AT_ZERO = set(
    "tanh relu square abs sign sin silu gelu elu erf expm1 sqrt log1p neg stop_gradient".split()
)
_TAME = _ZERO_AT_ZERO | set(
    "add sub mul exp sigmoid softplus logsigmoid cos maximum minimum clamp select".split()
)


def _depends(expression: Scalar, axes: Callable[[Scalar], frozenset[object]], axis: object) -> bool:
    if isinstance(expression, Apply):
        return any(_depends(a, axes, axis) for a in expression.args)
    return axis in axes(expression)


def _tame(expression: Scalar) -> bool:
    """Whether the expression is finite wherever its loads are zero or ordinary."""
    if isinstance(expression, Apply):
        return expression.op in _TAME and all(map(_tame, expression.args))
    return True


def vanishing(
    expression: Scalar,
    zero: Callable[[Load], frozenset[object]],
    axes: Callable[[Scalar], frozenset[object]],
) -> frozenset[object] | None:
    """Axes in whose padding the expression is zero, given those of its loads; None: everywhere.

    `axes` tells on which axes a leaf depends. Padded lanes hold zeros, so a product with a padded
    factor vanishes there as long as its other factors are finite.
    """
    match expression:
        case Const(value):
            return None if value == 0 else frozenset()
        case Load():
            return zero(expression)
        case Apply("mul", args):
            found: set[object] = set()
            for n, argument in enumerate(args):
                own = vanishing(argument, zero, axes)
                if own is None:
                    return None
                others = [a for m, a in enumerate(args) if m != n]
                found |= {
                    v for v in own if all(_tame(a) or not _depends(a, axes, v) for a in others)
                }
            return frozenset(found)
        case Apply("div", (a, b)):
            own = vanishing(a, zero, axes)
            return own if own is None else frozenset(v for v in own if not _depends(b, axes, v))
        case Apply("add" | "sub" | "maximum" | "minimum", args):
            return _common([vanishing(a, zero, axes) for a in args])
        case Apply("select", (_, a, b)):
            return _common([vanishing(a, zero, axes), vanishing(b, zero, axes)])
        case Apply(op, (a,)) if op in _ZERO_AT_ZERO:
            return vanishing(a, zero, axes)
        case _:
            return frozenset()


def _common(sets: list[frozenset[object] | None]) -> frozenset[object] | None:
    found: frozenset[object] | None = None
    for own in sets:
        if own is not None:
            found = own if found is None else found & own
    return found
