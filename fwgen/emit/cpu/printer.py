"""Scalar expressions as C++, for one element or for a vector of lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fwgen.errors import InternalError
from fwgen.ir.nodes import Apply, Const, Index, IndexValue, Load, Position, Scalar, Size

Kind = Literal["vec", "real", "int", "mask", "bool"]


@dataclass(frozen=True, slots=True)
class Text:
    """A C++ expression, how tightly it binds (higher is tighter), and what it is."""

    text: str
    level: int
    kind: Kind

    def at(self, level: int) -> str:
        """The text, in parentheses where the surroundings bind tighter than `level`."""
        return self.text if self.level >= level else f"({self.text})"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How the leaves of an expression read at this place."""

    load: Callable[[Load], Text]
    index: Callable[[Index], Text]
    size: Callable[[Size], Text]
    position: str


SUM, PRODUCT, UNARY, ATOM = 1, 2, 3, 4
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
LOGIC = {"and": "both", "or": "either", "not": "opposite"}
NAMES = """
exp log log1p expm1 sqrt rsqrt abs sign sin cos tanh sigmoid logsigmoid softplus relu elu silu gelu
square erf maximum minimum clamp
"""
FUNCTIONS = frozenset(NAMES.split())


def scalar_text(node: Scalar, around: Surroundings) -> Text:
    """Print an expression."""
    match node:
        case Const(value):
            return _constant(value)
        case Size():
            return around.size(node)
        case Position():
            return Text(around.position, SUM if " " in around.position else ATOM, "int")
        case IndexValue(index):
            return around.index(index)
        case Load():
            return around.load(node)
        case Apply(op, args):
            return _apply(op, [scalar_text(arg, around) for arg in args], args)
    raise InternalError(f"unknown expression {node!r}")


def _constant(value: float) -> Text:
    if isinstance(value, int):
        return Text(str(value), ATOM if value >= 0 else UNARY, "int")
    if value != value:
        return Text('real(__builtin_nan(""))', ATOM, "real")
    if value in (float("inf"), float("-inf")):
        sign = "-" if value < 0 else ""
        return Text(f"real({sign}__builtin_inf())", ATOM, "real")
    return Text(f"real({value!r})", ATOM, "real")


def as_real(text: Text) -> Text:
    """An integer as a real number; vectors and reals as they are."""
    if text.kind != "int":
        return text
    return Text(f"real({text.text})", ATOM, "real")


def _apply(op: str, args: list[Text], nodes: tuple[Scalar, ...]) -> Text:
    if op == "stop_gradient":
        return args[0]
    if op in ("add", "sub", "mul", "neg", "mod") and all(arg.kind == "int" for arg in args):
        return _arithmetic(op, args, "int")
    if op in COMPARISONS:
        return _comparison(op, args)
    if op in LOGIC:
        return Text(f"fw::{LOGIC[op]}({_list(args)})", ATOM, _condition(args))
    if op == "select":
        return _select(args)
    real = [as_real(arg) for arg in args]
    kind: Kind = "vec" if any(arg.kind == "vec" for arg in real) else "real"
    if op in ("add", "sub", "mul", "neg", "div"):
        return _arithmetic(op, real, kind)
    if op == "mod":
        raise InternalError("the remainder of numbers that are not integers")
    if op == "pow":
        return _power(real, nodes[1], kind)
    if op in FUNCTIONS:
        return Text(f"fw::{op}({_list(real)})", ATOM, kind)
    raise InternalError(f"no C++ for the operation {op}")


def _list(args: list[Text]) -> str:
    return ", ".join(arg.text for arg in args)


def _arithmetic(op: str, args: list[Text], kind: Kind) -> Text:
    if op == "add":
        rest = "".join(f" + {arg.at(SUM + 1)}" for arg in args[1:])
        return Text(args[0].at(SUM) + rest, SUM, kind)
    if op == "sub":
        return Text(f"{args[0].at(SUM)} - {args[1].at(SUM + 1)}", SUM, kind)
    if op == "neg":
        return Text(f"-{args[0].at(UNARY + 1)}", UNARY, kind)
    if op == "mod":
        return Text(f"fw::modulo({_list(args)})", ATOM, kind)
    if op == "div":
        return Text(f"{args[0].at(PRODUCT)} / {args[1].at(PRODUCT + 1)}", PRODUCT, kind)
    scalars = [arg for arg in args if arg.kind != "vec"]
    ordered = [*scalars, *(arg for arg in args if arg.kind == "vec")]
    return Text(" * ".join(arg.at(PRODUCT + 1) for arg in ordered), PRODUCT, kind)


def _comparison(op: str, args: list[Text]) -> Text:
    if not all(arg.kind == "int" for arg in args):
        args = [as_real(arg) for arg in args]
    sides = f"{args[0].at(SUM)} {COMPARISONS[op]} {args[1].at(SUM)}"
    return Text(f"({sides})", ATOM, _condition(args))


def _condition(args: list[Text]) -> Kind:
    """A mask where any part has lanes."""
    return "mask" if any(arg.kind in ("vec", "mask") for arg in args) else "bool"


def _select(args: list[Text]) -> Text:
    condition, left, right = args
    if condition.kind == "bool" and left.kind == right.kind == "int":
        branches = f"size({left.text}), size({right.text})"
        return Text(f"fw::select({condition.text}, {branches})", ATOM, "int")
    left, right = as_real(left), as_real(right)
    wide = "vec" in (left.kind, right.kind) or condition.kind == "mask"
    text = f"fw::select({condition.text}, {left.text}, {right.text})"
    return Text(text, ATOM, "vec" if wide else "real")


def _power(args: list[Text], exponent: Scalar, kind: Kind) -> Text:
    base = args[0]
    if isinstance(exponent, Const) and float(exponent.value) in (2.0, 3.0, 4.0):
        count = int(exponent.value)
        return Text(" * ".join([base.at(PRODUCT + 1)] * count), PRODUCT, kind)
    if isinstance(exponent, Const) and exponent.value == -1:
        return Text(f"real(1) / {base.at(PRODUCT + 1)}", PRODUCT, kind)
    return Text(f"fw::power({_list(args)})", ATOM, kind)
