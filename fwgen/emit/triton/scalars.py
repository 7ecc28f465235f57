"""Scalar expressions of Step IR as Triton expressions; element accesses are left to a hook."""

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
_POWERS = {-1.0: "", 0.5: "tl.sqrt", -0.5: "tl.rsqrt"}


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
            case Apply(op) if op != "mod" and not self.is_whole(expression):
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
            if value == -1.0:
                return binary("/", MUL, number(1.0), self._tensor(base))
            return call(_POWERS[value], self._tensor(base))
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
