"""What values a formula can take, by interval arithmetic on its structure; never too narrow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fwgen.ir.nodes import (
    Apply,
    Const,
    Index,
    IndexValue,
    Load,
    Position,
    Scalar,
    Size,
    Statement,
    Step,
    Var,
)
from fwgen.ir.ops import OPS
from fwgen.ir.walk import substitute, variables

INF = math.inf
DIP = {"silu": -0.2785, "gelu": -0.1701}
"""Lower bounds of the functions that fall before they rise."""


@dataclass(frozen=True, slots=True)
class Interval:
    """All numbers from `low` to `high`."""

    low: float = -INF
    high: float = INF

    def hull(self, other: Interval) -> Interval:
        """The least interval with both in it."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


ANY, POSITIVE, UNIT = Interval(), Interval(0.0, INF), Interval(-1.0, 1.0)


class Bounds:
    """Intervals of the arrays and formulas of a step.

    Of inputs, params and buffers nothing is known. A state that no token makes negative is taken to
    be at least 0: it starts so, unless a caller passes another start.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.definitions: dict[str, list[Statement]] = {}
        for statement in step.statements:
            self.definitions.setdefault(statement.target, []).append(statement)
        self._known: dict[str, Interval] = {}
        positive = {s.old: s.new for s in step.states if s.init is not None and s.init >= 0}
        while True:
            self._known = dict.fromkeys(positive, POSITIVE)
            # In order, so that nothing nests as deep as a rule is long.
            for name in self.definitions:
                self.array(name)
            fallen = [old for old, new in positive.items() if self.array(new).low < 0]
            if not fallen:
                return
            for old in fallen:
                del positive[old]

    def array(self, name: str) -> Interval:
        """The interval of an array's elements."""
        if name not in self._known:
            parts = [self._statement(s) for s in self.definitions.get(name, ())]
            found = parts[0] if parts else ANY
            for part in parts[1:]:
                found = found.hull(part)
            self._known[name] = found
        return self._known[name]

    def _statement(self, statement: Statement) -> Interval:
        found = self.of(statement.body)
        if statement.reduce != "sum":
            return found
        low, high = _times_many(found.low), _times_many(found.high)
        return Interval(min(found.low, low), max(found.high, high))

    def of(self, expression: Scalar) -> Interval:
        """The interval of an expression."""
        match expression:
            case Const(value):
                return Interval(value, value)
            case Size():
                return Interval(1.0, INF)
            case Position() | IndexValue():
                return POSITIVE
            case Load(array):
                return self.array(array)
            case Apply("mul" | "square" as op, args):
                return self._product(op, args)
            case Apply("sub", (left, right)) if self._below_maximum(left, right):
                return Interval(self._plain("sub", (left, right)).low, 0.0)
            case Apply(op, args):
                return self._plain(op, args)

    def _plain(self, op: str, args: tuple[Scalar, ...]) -> Interval:
        if OPS[op].kind == "bool":
            return Interval(0.0, 1.0)
        return _apply(op, [self.of(argument) for argument in args])

    def _product(self, op: str, args: tuple[Scalar, ...]) -> Interval:
        """Equal factors make squares, which are never negative."""
        items = list(args) * (2 if op == "square" else 1)
        found = Interval(1.0, 1.0)
        while items:
            item = items.pop(0)
            part = self.of(item)
            if item in items:
                items.remove(item)
                part = _even(_product(part, part), part)
            found = _product(found, part)
        return found

    def _below_maximum(self, left: Scalar, right: Scalar) -> bool:
        """Whether `right` is a maximum that `left` takes part in."""
        match right:
            case Apply("stop_gradient", (inner,)):
                return self._below_maximum(left, inner)
            case Apply("maximum", args):
                return any(left == argument for argument in args)
            case Load(array, index):
                found = self.definitions.get(array, [])
                if len(found) != 1:
                    return False
                body = found[0].body
                if found[0].reduce == "max":
                    return nameless(body) == nameless(left)
                same = found[0].reduce is None and found[0].index == index
                return same and self._below_maximum(left, body)
        return False


def nameless(expression: Scalar) -> Scalar:
    """An expression with its variables named in order, to compare it with another one's."""
    places = {v: Index.of(Var(f"axis{n}", v.dim)) for n, v in enumerate(variables(expression))}
    return substitute(expression, places)


def _times_many(value: float) -> float:
    """A bound of a sum of one or more terms from that of a term, on the side away from 0."""
    return value if value == 0 else math.copysign(INF, value)


def _product(a: Interval, b: Interval) -> Interval:
    ends = [_finite(x * y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Interval(min(ends), max(ends))


def _finite(value: float) -> float:
    """0 * inf bounds nothing more than 0 does."""
    return 0.0 if math.isnan(value) else value


def _even(image: Interval, base: Interval) -> Interval:
    return Interval(max(0.0, image.low if base.low > 0 or base.high < 0 else 0.0), image.high)


def _rising(function: Callable[[float], float]) -> Callable[[Interval], Interval]:
    def image(x: Interval) -> Interval:
        return Interval(function(x.low), function(x.high))

    return image


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else INF


def _sigmoid(x: float) -> float:
    return 1 / (1 + _exp(-x)) if x > -700 else 0.0


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -INF


def _root(x: float) -> float:
    return math.sqrt(x) if x > 0 else 0.0


def _softplus(x: float) -> float:
    return x if x > 700 else math.log1p(_exp(x))


def _inverse(x: Interval) -> Interval:
    """1 / x, which is anything if x may be 0."""
    if x.low >= 0 and x.high > 0:
        return Interval(1 / x.high if x.high < INF else 0.0, 1 / x.low if x.low > 0 else INF)
    if x.high <= 0 and x.low < 0:
        other = _inverse(Interval(-x.high, -x.low))
        return Interval(-other.high, -other.low)
    return ANY


def _magnitude(x: Interval) -> Interval:
    ends = abs(x.low), abs(x.high)
    return Interval(0.0 if x.low < 0 < x.high else min(ends), max(ends))


def _dipping(name: str) -> Callable[[Interval], Interval]:
    def image(x: Interval) -> Interval:
        return Interval(0.0 if x.low >= 0 else DIP[name], max(0.0, x.high))

    return image


ONE: dict[str, Callable[[Interval], Interval]] = {
    "neg": lambda x: Interval(-x.high, -x.low),
    "exp": _rising(_exp),
    "expm1": _rising(lambda x: _exp(x) - 1),
    "log": _rising(_log),
    "log1p": _rising(lambda x: _log(1 + x)),
    "sqrt": _rising(_root),
    "rsqrt": lambda x: _inverse(Interval(_root(x.low), _root(x.high))),
    "tanh": _rising(math.tanh),
    "erf": _rising(math.erf),
    "sign": lambda x: Interval(-1.0 if x.low < 0 else 0.0, 1.0 if x.high > 0 else 0.0),
    "sigmoid": _rising(_sigmoid),
    "logsigmoid": _rising(lambda x: -_softplus(-x)),
    "softplus": _rising(_softplus),
    "relu": _rising(lambda x: max(x, 0.0)),
    "elu": _rising(lambda x: x if x > 0 else _exp(x) - 1),
    "silu": _dipping("silu"),
    "gelu": _dipping("gelu"),
    "sin": lambda x: UNIT,
    "cos": lambda x: UNIT,
    "abs": _magnitude,
    "stop_gradient": lambda x: x,
}


def _total(values: Iterable[float], low: bool) -> float:
    found = sum(values)
    return (-INF if low else INF) if math.isnan(found) else found


def _apply(op: str, args: list[Interval]) -> Interval:
    """The image of intervals under an operation."""
    lows, highs = [a.low for a in args], [a.high for a in args]
    match op:
        case "add":
            return Interval(_total(lows, True), _total(highs, False))
        case "sub":
            return _apply("add", [args[0], ONE["neg"](args[1])])
        case "div":
            return _product(args[0], _inverse(args[1]))
        case "maximum":
            return Interval(max(lows), max(highs))
        case "minimum":
            return Interval(min(lows), min(highs))
        case "clamp":
            return _apply("minimum", [_apply("maximum", args[:2]), args[2]])
        case "select":
            return args[1].hull(args[2])
        case "mod":
            return Interval(0.0, max(0.0, args[1].high)) if args[1].low > 0 else ANY
        case "pow":
            return POSITIVE if args[0].low >= 0 else ANY
    return ONE[op](args[0]) if op in ONE else ANY
