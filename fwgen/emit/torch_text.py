"""Prints the right-hand sides of Step IR as PyTorch expressions over `[B, H, *dims]` tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fwgen.emit.torch_views import (
    ADD,
    AND,
    ATOM,
    COMPARE,
    MUL,
    OR,
    POW,
    UNARY,
    Text,
    Views,
    nones,
    size_level,
)
from fwgen.ir.nodes import (
    Apply,
    Const,
    IndexValue,
    Load,
    Position,
    Scalar,
    Size,
    Statement,
    Var,
)
from fwgen.ir.ops import OPS
from fwgen.ir.walk import loads, variables

_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_CALLS = {
    "elu": "functional.elu",
    "silu": "functional.silu",
    "gelu": "functional.gelu",
    "logsigmoid": "functional.logsigmoid",
}
_MATH = {"sqrt", "exp", "log", "sin", "cos", "tanh", "log1p", "expm1", "erf"}


@dataclass
class TorchPrinter(Views):
    """Prints the statements of one step."""

    def value(self, statement: Statement) -> str:
        """The statement's value, shape `[B, H, *free]`."""
        free, over = statement.free, statement.over
        if statement.reduce is None:
            return self._full(self.elementwise(statement.body, free), statement.body, free)
        if statement.reduce == "sum":
            return self._sum(statement.body, free, over)
        axes = (*free, *over)
        text = self._full(self.elementwise(statement.body, axes), statement.body, axes)
        return f"{method_head(text)}.{'a' + statement.reduce}({_axes(len(over))})"

    def _full(self, value: Text, body: Scalar, axes: Sequence[Var]) -> str:
        """Expand what does not reach every axis, or has no leading axes."""
        found = {var for load in loads(body) for i in load.index for _, var in i.terms}
        if loads(body) and found >= set(axes):
            return value.text
        self.needs.add("lead")
        inner = value.at(POW)
        if value.number:
            inner = self._tensor(value)
        sizes = "".join(f", {self.dim(var.dim)}" for var in axes)
        return f"{inner}.expand(*lead{sizes})"

    def _tensor(self, value: Text) -> str:
        return f"{self.like}.new_tensor({value.text})"

    def _sum(self, body: Scalar, free: Sequence[Var], over: Sequence[Var]) -> str:
        factors = _factors(body)
        outside = [f for f in factors if not variables(f)]
        inside = [f for f in factors if variables(f)]
        reached = {var for f in inside for var in variables(f)}
        outside += [Size(var.dim) for var in over if var not in reached]
        over = [var for var in over if var in reached]
        kept = [var for var in free if var in reached]
        if not over:
            product = Apply("mul", tuple(outside + inside)) if len(factors) > 1 else factors[0]
            return self._full(self.elementwise(product, free), product, free)
        if len(inside) == 1:
            axes = (*kept, *over)
            text = self.elementwise(inside[0], axes)
            core = f"{method_head(self._full(text, inside[0], axes))}.sum({_axes(len(over))})"
        else:
            core = self._einsum(inside, kept)
        value = Text(core)
        if tuple(kept) != tuple(free):
            value = Text(core + nones([var in reached for var in free]))
        if outside:
            scale = Apply("mul", tuple(outside)) if len(outside) > 1 else outside[0]
            value = Text(f"{self.elementwise(scale, free).at(MUL)} * {value.text}", MUL)
        if tuple(kept) != tuple(free):
            self.needs.add("lead")
            return f"{value.at(POW)}.expand(*lead{''.join(f', {self.dim(v.dim)}' for v in free)})"
        return value.text

    def _einsum(self, factors: Sequence[Scalar], free: Sequence[Var]) -> str:
        letters = _letters([*free, *(var for f in factors for var in variables(f))])
        terms, operands = [], []
        for factor in factors:
            axes = variables(factor)
            if not _plain(factor):
                axes.sort(key=list(letters).index)
            text = self._full(self.elementwise(factor, axes), factor, axes)
            terms.append("..." + "".join(letters[var] for var in axes))
            operands.append(text)
        out = "..." + "".join(letters[var] for var in free)
        return f'torch.einsum("{",".join(terms)}->{out}", {", ".join(operands)})'

    def elementwise(self, body: Scalar, axes: Sequence[Var]) -> Text:
        """A scalar expression broadcast over `axes`."""
        match body:
            case Const(value):
                return _number(value)
            case Size(dim):
                return Text(self.dim(dim), size_level(dim), True, True)
            case Position():
                self.needs.add("t")
                return Text("t" + (nones([False] * len(axes)) if axes else ""), integer=True)
            case IndexValue(index):
                return self.index_value(index, axes)
            case Load():
                return Text(self.load_text(body, axes))
            case Apply(op, args):
                return self._apply(op, args, axes)

    def _apply(self, op: str, args: tuple[Scalar, ...], axes: Sequence[Var]) -> Text:
        if op == "select":
            return self._select(args, axes)
        values = [self.elementwise(argument, axes) for argument in args]
        number = all(v.number for v in values)
        integer = all(v.integer for v in values) and OPS[op].kind in ("number", "int")
        if op in _COMPARISONS:
            left, right = (v.at(ADD) for v in values)
            return Text(f"{left} {_COMPARISONS[op]} {right}", COMPARE, number)
        if op in ("and", "or"):
            sign, level = (" & ", AND) if op == "and" else (" | ", OR)
            return Text(sign.join(self._condition(v).at(level + 1) for v in values), level, number)
        if op == "not":
            return Text(f"~{self._condition(values[0]).at(UNARY)}", UNARY)
        if not integer and op not in ("add", "sub", "mul", "neg", "mod"):
            values = [self._real(v) for v in values]
        if op == "add":
            return Text(_sum_text(args, values), ADD, number, integer)
        if op == "sub":
            return Text(f"{values[0].at(ADD)} - {values[1].at(MUL)}", ADD, number, integer)
        if op in ("mul", "div", "mod"):
            sign = {"mul": " * ", "div": " / ", "mod": " % "}[op]
            texts = [v.at(MUL if n == 0 else UNARY) for n, v in enumerate(values)]
            return Text(sign.join(texts), MUL, number, integer)
        if op == "neg":
            return Text(f"-{values[0].at(UNARY)}", UNARY, number, integer)
        return self._function(op, values, number)

    def _real(self, value: Text) -> Text:
        """Integer tensors become floating before a real function sees them."""
        if value.number or not value.integer:
            return value
        return Text(f"{value.at(POW)}.to({self.like}.dtype)")

    def _condition(self, value: Text) -> Text:
        if value.number:
            return Text(f"{self.like}.new_tensor({value.text}, dtype=torch.bool)")
        return (
            value
            if value.level in (COMPARE, AND, OR, UNARY)
            else Text(f"{value.text} != 0", COMPARE)
        )

    def _function(self, op: str, values: list[Text], number: bool) -> Text:
        first = values[0]
        if op == "pow":
            if first.number and not number:
                first = Text(self._tensor(first))
            return Text(f"{first.at(ATOM)} ** {values[1].at(POW)}", POW, number)
        if number and op in _MATH | {"rsqrt", "square"}:
            if op in ("rsqrt", "square"):
                return Text(f"{first.at(ATOM)} ** {-0.5 if op == 'rsqrt' else 2}", POW, True)
            self.needs.add("math")
            return Text(f"math.{op}({first.text})", number=True)
        if op == "stop_gradient":
            return first if number else Text(f"{first.at(POW)}.detach()")
        if op in ("maximum", "minimum"):
            pair = [self._tensor(v) if v.number else v.text for v in values]
            return Text(f"torch.{op}({', '.join(pair)})")
        if op == "clamp":
            bounds = [v.text for v in values[1:]]
            if not all(v.number for v in values[1:]):
                bounds = [self._tensor(v) if v.number else v.text for v in values[1:]]
            head = self._tensor(first) if first.number else first.text
            return Text(f"torch.clamp({head}, {', '.join(bounds)})")
        argument = self._tensor(first) if number else first.text
        if op == "softplus":
            negative = (
                f"-({argument})" if first.level < UNARY or argument[0] == "-" else f"-{argument}"
            )
            return Text(f"-functional.logsigmoid({negative})", UNARY)
        return Text(f"{_CALLS.get(op, 'torch.' + op)}({argument})")

    def _select(self, args: tuple[Scalar, ...], axes: Sequence[Var]) -> Text:
        condition = self._condition(self.elementwise(args[0], axes)).text
        inner = f"({condition})" if " " in condition else condition
        branches = [
            self._branch(args[1], condition, axes),
            self._branch(args[2], f"~{inner}", axes),
        ]
        if all(b.number for b in branches):
            branches[0] = Text(self._tensor(branches[0]))
        return Text(f"torch.where({condition}, {branches[0].text}, {branches[1].text})")

    def _branch(self, body: Scalar, condition: str, axes: Sequence[Var]) -> Text:
        """A branch of `where`; what could make 0 * inf in its derivative reads gated values."""
        if not _risky(body):
            return self._real(self.elementwise(body, axes))
        self.needs.add("gate")
        printer = _GatedPrinter(self.step, self.names, self.like, self.sizes, self.needs)
        printer.condition = condition
        printer.outer = self
        return self._real(printer.elementwise(body, axes))


@dataclass
class _GatedPrinter(TorchPrinter):
    """Prints a branch of `where`: every access passes through `_gate` under the condition."""

    condition: str = ""
    outer: TorchPrinter | None = None

    def load_text(self, load: Load, axes: Sequence[Var]) -> str:
        assert self.outer is not None
        return f"_gate({self.outer.load_text(load, axes)}, {self.condition})"


def _risky(body: Scalar) -> bool:
    """Whether a zero adjoint could meet an infinite derivative inside."""
    harmless = {"add", "sub", "neg", "select"}
    if isinstance(body, Apply):
        return bool(loads(body)) and (body.op not in harmless or any(map(_risky, body.args)))
    return False


def _plain(factor: Scalar) -> bool:
    """Whether it is an access by distinct plain variables (they are then in order of its axes)."""
    if not isinstance(factor, Load):
        return False
    found = [index.variable for index in factor.index]
    return None not in found and len(set(found)) == len(found)


def _number(value: float | int) -> Text:
    if isinstance(value, float) and not math.isfinite(value):
        return Text(f'float("{value}")', number=True)
    text = repr(value)
    level = UNARY if text.startswith("-") else ATOM
    return Text(text, level, True, isinstance(value, int))


def method_head(text: str) -> str:
    """Something that a method call can follow."""
    depth = 0
    for character in text:
        depth += character in "(["
        depth -= character in ")]"
        if depth == 0 and character in " -~":
            return f"({text})"
    return text


def _axes(count: int) -> str:
    return "-1" if count == 1 else f"({', '.join(str(-n) for n in range(count, 0, -1))})"


def _factors(body: Scalar) -> list[Scalar]:
    """The factors of a product; quotients give one factor more."""
    match body:
        case Apply("mul", args):
            return [factor for argument in args for factor in _factors(argument)]
        case Apply("neg", (inner,)):
            return [Const(-1), *_factors(inner)]
        case Apply("div", (above, below)) if variables(above):
            return [*_factors(above), Apply("div", (Const(1), below))]
        case Apply("square", (inner,)) if isinstance(inner, Load):
            return [body]
        case _:
            return [body]


def _letters(order: Sequence[Var]) -> dict[Var, str]:
    letters: dict[Var, str] = {}
    spare = iter("ijklmnopqrstuvwxyzabcdefghABCDEFGHIJKLMNOPQRSTUVWXYZ")
    wanted = {var.name for var in order}
    for var in dict.fromkeys(order):
        letters[var] = var.name if len(var.name) == 1 else next(c for c in spare if c not in wanted)
    return letters


def _sum_text(args: tuple[Scalar, ...], values: list[Text]) -> str:
    text = values[0].at(ADD)
    for value in values[1:]:
        if value.text.startswith("-") and value.level >= UNARY:
            text += f" - {value.text[1:]}"
        else:
            text += f" + {value.at(ADD + 1)}"
    return text
