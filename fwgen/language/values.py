"""Values of expressions while a rule is lowered: a scalar body over index variables.

`a + b` of two vectors is one value whose body is `a[i] + b[i]`; only reductions, concatenations
and assignments make arrays (see `builder`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import numpy as np

from fwgen.ir.dims import Dim
from fwgen.ir.functions import FUNCTIONS
from fwgen.ir.nodes import Apply, Const, Index, IndexValue, Load, Scalar, Var
from fwgen.ir.ops import OPS
from fwgen.ir.walk import scalars, substitute

View = Literal["row", "col"]
Kind = Literal["real", "int"]
ONE = Const(1)


@dataclass(frozen=True, slots=True)
class Value:
    """One variable per axis and a body over them.

    `view` marks a vector that stands for a matrix along one axis. `kind` `int` are token
    positions, sizes and integer constants.
    """

    axes: tuple[Var, ...]
    body: Scalar
    view: View | None = None
    kind: Kind = "real"
    depth: int = 0
    """How deep the body nests, at most; `combine` stores what gets too deep to walk."""
    size: int = 1
    """How many operations the body has, about; `combine` stores what gets too long to copy."""

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The size of every axis."""
        return tuple(axis.dim for axis in self.axes)

    @property
    def constant(self) -> int | float | None:
        """The number, when the value is one."""
        return self.body.value if isinstance(self.body, Const) and not self.axes else None

    def at(self, indices: Iterable[Index]) -> Scalar:
        """The body with an index expression for every axis.

        Raises ValueError where an index with a modulo would stand inside another one.
        """
        return substitute(self.body, dict(zip(self.axes, indices, strict=True)))

    def over(self, axes: Iterable[Var]) -> Scalar:
        """The body over other variables."""
        return self.at([Index.of(axis) for axis in axes])


def number(value: int | float) -> Value:
    """A constant."""
    return Value((), Const(value), kind="int" if isinstance(value, int) else "real")


def is_plain(value: Value) -> bool:
    """Whether using the value twice costs nothing: an element access, a number, `t`."""
    return not isinstance(value.body, Apply | IndexValue)


def is_load(value: Value) -> bool:
    """Whether the value is a whole array, axis for axis."""
    match value.body:
        case Load(_, index):
            return index == tuple(Index.of(axis) for axis in value.axes)
    return False


class NumberError(Exception):
    """Constant arithmetic that has no finite result."""


def _fold(op: str, args: tuple[int | float, ...]) -> int | float | None:
    """The result of arithmetic on numbers, or None where it is left to the kernel."""
    try:
        match op, args:
            case "add", _:
                result = sum(args)
            case "mul", _:
                result = math.prod(args)
            case "sub", (a, b):
                result = a - b
            case "neg", (a,):
                result = -a
            case "div", (a, b):
                result = a / b
            case "pow", (a, b):
                if abs(b) > 2000:
                    raise OverflowError
                result = float(a) ** b if b < 0 else a**b
            case "square", (a,):
                result = a * a
            case "mod", (a, b):
                result = a % b
            case _:
                return None
        if isinstance(result, complex) or not abs(float(result)) <= 1e308:
            raise OverflowError
    except (OverflowError, ZeroDivisionError):
        raise NumberError from None
    return result if abs(result) < 2**53 else float(result)


def _check_finite(op: str, args: tuple[Scalar, ...]) -> None:
    """Raise NumberError for a division by zero, or a function of numbers without a finite value."""
    if op == "div" and args[1] in (Const(0), Const(0.0)):
        raise NumberError
    leaves = (n for a in args for n in scalars(a) if not isinstance(n, Apply))
    if all(isinstance(leaf, Const) for leaf in leaves):
        with np.errstate(all="ignore"):
            if not np.isfinite(_number(Apply(op, args))):
                raise NumberError


def _number(expression: Scalar) -> Any:
    """The value of an expression of numbers alone."""
    if isinstance(expression, Const):
        return expression.value
    assert isinstance(expression, Apply)
    values = [_number(argument) for argument in expression.args]
    if OPS[expression.op].arity is None:
        return reduce(operator.add if expression.op == "add" else operator.mul, values)
    return FUNCTIONS[expression.op](*values)


def apply(op: str, *args: Scalar) -> Scalar:
    """A scalar operation; numbers are folded, sums and products flattened, factors 1 dropped.

    Raises NumberError.
    """
    if all(isinstance(a, Const) for a in args):
        folded = _fold(op, tuple(a.value for a in args if isinstance(a, Const)))
        if folded is not None:
            return Const(folded)
    _check_finite(op, args)
    match op, args:
        case "mul", (Const(1), a) | (a, Const(1)):
            return a
        case "neg", (Apply("neg", (a,)),):
            return a
        case "div", (a, Const(1)):
            return a
    if OPS[op].arity is None:
        parts: list[Scalar] = []
        for a in args:
            parts += a.args if isinstance(a, Apply) and a.op == op else (a,)
        return Apply(op, tuple(parts))
    return Apply(op, args)


def product(factors: Iterable[Scalar]) -> Scalar:
    """The product of scalars; 1 of none."""
    result: Scalar = ONE
    for factor in factors:
        result = apply("mul", result, factor)
    return result


def occurring(body: Scalar) -> frozenset[Var]:
    """The variables of a body."""
    found: set[Var] = set()
    for node in scalars(body):
        indices = node.index if isinstance(node, Load) else ()
        if isinstance(node, IndexValue):
            indices = (node.index,)
        found |= {var for index in indices for _, var in index.terms}
    return frozenset(found)


CHEAP = frozenset({"add", "sub", "mul", "neg", "stop_gradient"})


def is_cheap(value: Value) -> bool:
    """Whether evaluating the body again for every row of a matrix costs little."""
    return all(node.op in CHEAP for node in scalars(value.body) if isinstance(node, Apply))


@dataclass(frozen=True, slots=True)
class Factors:
    """A product split by whether its factors depend on some variables."""

    inside: tuple[Scalar, ...] = ()
    outside: tuple[Scalar, ...] = ()
    below: tuple[Scalar, ...] = ()
    """Divisors that do not depend on the variables."""

    def join(self, other: Factors) -> Factors:
        """The product of two products."""
        return Factors(
            self.inside + other.inside, self.outside + other.outside, self.below + other.below
        )


def split(body: Scalar, over: frozenset[Var]) -> Factors:
    """Factors of a body that depend on `over`, and the others, which leave a sum over them."""
    if not occurring(body) & over:
        return Factors(outside=(body,))
    match body:
        case Apply("mul", args):
            result = Factors()
            for arg in args:
                result = result.join(split(arg, over))
            return result
        case Apply("neg", (arg,)):
            return Factors(outside=(Const(-1),)).join(split(arg, over))
        case Apply("div", (above, below)) if not occurring(below) & over:
            found = split(above, over)
            return replace(found, below=(*found.below, below))
        case _:
            return Factors(inside=(body,))
