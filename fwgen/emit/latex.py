r"""LaTeX of Step IR in index notation: `p_{i} = \sum_{j} W_{i,j}\, k_{j}`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import (
    Apply,
    Array,
    Backward,
    Const,
    Index,
    IndexValue,
    Load,
    Position,
    Scalar,
    Size,
)
from fwgen.ir.text import number_text

OR, AND, COMPARE, ADD, MUL, ATOM = range(6)
_LETTERS = """alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau
phi chi psi omega"""
_GREEK = frozenset(_LETTERS.split())
_RELATIONS = {"lt": "<", "le": r"\le", "gt": ">", "ge": r"\ge", "eq": "=", "ne": r"\ne"}
_COMMANDS = {"exp", "log", "sin", "cos", "tanh", "max", "min"}
_NAMED = {"maximum": "max", "minimum": "min"}


def escaped(text: str) -> str:
    """Plain text, or a name, for LaTeX outside of formulas."""
    return re.sub(r"([\\{}$&#%_^~])", _escape, text)


def _escape(match: re.Match[str]) -> str:
    special = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    return special.get(match[1], "\\" + match[1])


def symbol(name: str) -> str:
    r"""An array's or a size's name: `beta` -> `\beta`, `W_1` -> `W^{(1)}`, `phi_q` -> `\phi^{q}`.

    Indices are subscripts, so whatever else belongs to a name stands above it.
    """
    found = re.fullmatch(r"(.*[^_])_(\d+)", name)
    if found:
        head = symbol(found[1])
        return f"{head[:-1]}({found[2]})}}" if "^{" in head else f"{head}^{{({found[2]})}}"
    head, _, rest = name.partition("_")
    if rest and (len(head) == 1 or head in _GREEK):
        return rf"{symbol(head)}^{{\mathrm{{{escaped(rest)}}}}}"
    if name in _GREEK:
        return "\\" + name
    return name if len(name) == 1 else rf"\mathrm{{{escaped(name)}}}"


def symbols(arrays: Sequence[Array]) -> dict[str, str]:
    """The symbols of arrays by name."""
    return {array.name: symbol(array.name) for array in arrays}


def symbols_of(backward: Backward) -> dict[str, str]:
    r"""The symbols of a backward's arrays: the gradient of x is `\bar{x}`."""
    found = symbols((*backward.forward.arrays, *backward.arrays))
    results = ((name, adjoint) for name, adjoint in backward.results if adjoint)
    owners = {adjoint: name for name, adjoint in (*backward.seeds, *results)}
    owners |= {a.name: a.of for a in backward.arrays if a.of and a.name.startswith("d_")}
    return found | {adjoint: _barred(symbol(name)) for adjoint, name in owners.items()}


def _barred(text: str) -> str:
    """A bar over the letter of a symbol, not over its superscript."""
    head, power, rest = text.partition("^")
    wide = "overline" if head.startswith(r"\mathrm") else "bar"
    return rf"\{wide}{{{head}}}{power}{rest}"


def dim_latex(dim: Dim) -> str:
    """A size: `2 K^{2} + 1`."""
    text = ""
    for monomial, coefficient in dim.terms:
        factors = [
            symbol(name) + (f"^{{{monomial.count(name)}}}" if monomial.count(name) > 1 else "")
            for name in dict.fromkeys(monomial)
        ]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        sign = " - " if coefficient < 0 else " + "
        text += (sign if text else sign.strip(" +")) + r"\,".join(factors)
    return text or "0"


@dataclass(frozen=True)
class Latex:
    """Prints expressions; `names` holds the symbols of arrays."""

    names: Mapping[str, str]

    def element(self, load: Load) -> str:
        """An element of an array."""
        if not load.index:
            return self.names[load.array]
        return f"{self.names[load.array]}_{{{','.join(map(self._index, load.index))}}}"

    def scalar(self, expression: Scalar, level: int = OR) -> str:
        """An expression, in brackets where `level` (a precedence) needs them."""
        text, own = self._scalar(expression)
        return text if own >= level else rf"\left({text}\right)"

    def _index(self, index: Index) -> str:
        text = ""
        for coefficient, var in index.terms:
            size = coefficient.constant
            negative = size is not None and size < 0
            factor = dim_latex(-coefficient if negative else coefficient)
            factor = rf"\left({factor}\right)" if len(coefficient.terms) > 1 else factor
            factor = "" if factor == "1" else factor + r"\,"
            text += (" - " if negative else " + ") + factor + var.name
        if index.offset.terms or not text:
            offset = dim_latex(index.offset)
            text += f" - {offset[1:]}" if offset.startswith("-") else f" + {offset}"
        text = text[3:] if text.startswith(" + ") else "-" + text[3:]
        if index.modulo is None:
            return text
        text = rf"\left({text}\right)" if " " in text else text
        return rf"{text} \bmod {dim_latex(index.modulo)}"

    def _scalar(self, expression: Scalar) -> tuple[str, int]:
        match expression:
            case Const(value):
                return _number(value), ADD if value < 0 else ATOM
            case Size(dim):
                return dim_latex(dim), ADD if len(dim.terms) > 1 else MUL
            case Position():
                return "t", ATOM
            case IndexValue(index):
                return self._index(index), ADD
            case Load():
                return self.element(expression), ATOM
            case Apply(op, args):
                return self._apply(op, args)

    def _apply(self, op: str, args: tuple[Scalar, ...]) -> tuple[str, int]:
        match op:
            case "add":
                return self._sum(args), ADD
            case "sub":
                return f"{self.scalar(args[0], ADD)} - {self.scalar(args[1], MUL)}", ADD
            case "neg":
                return f"-{self.scalar(args[0], MUL)}", ADD
            case "mul":
                return r"\, ".join(self._powers(args)), MUL
            case "div":
                return rf"\frac{{{self.scalar(args[0])}}}{{{self.scalar(args[1])}}}", ATOM
            case "mod":
                return rf"{self.scalar(args[0], MUL)} \bmod {self.scalar(args[1], ATOM)}", MUL
            case "pow" | "square":
                return self._power(args[0], args[1] if op == "pow" else Const(2)), MUL
            case "sqrt":
                return rf"\sqrt{{{self.scalar(args[0])}}}", ATOM
            case "rsqrt":
                return rf"\frac{{1}}{{\sqrt{{{self.scalar(args[0])}}}}}", ATOM
            case "abs":
                return rf"\left|{self.scalar(args[0])}\right|", ATOM
            case "select":
                return self._cases(args), ATOM
            case _:
                return self._condition(op, args)

    def _condition(self, op: str, args: tuple[Scalar, ...]) -> tuple[str, int]:
        match op:
            case "and":
                return r" \land ".join(self.scalar(a, COMPARE) for a in args), AND
            case "or":
                return r" \lor ".join(self.scalar(a, AND) for a in args), OR
            case "not":
                return rf"\lnot {self.scalar(args[0], ATOM)}", COMPARE
            case _ if op in _RELATIONS:
                left, right = (self.scalar(a, ADD) for a in args)
                return f"{left} {_RELATIONS[op]} {right}", COMPARE
            case _:
                name = _NAMED.get(op, op)
                head = "\\" + name if name in _COMMANDS else rf"\operatorname{{{escaped(name)}}}"
                return rf"{head}\left({', '.join(map(self.scalar, args))}\right)", ATOM

    def _powers(self, args: tuple[Scalar, ...]) -> list[str]:
        """The factors of a product, equal elements as a power."""
        found = []
        for factor in dict.fromkeys(args):
            count = args.count(factor)
            if count > 1 and isinstance(factor, Load):
                found.append(self._power(factor, Const(count)))
            else:
                found += [self.scalar(factor, MUL)] * count
        return found

    def _power(self, base: Scalar, exponent: Scalar) -> str:
        text = self.scalar(base)
        plain = isinstance(base, Load | Size | Position) and not {"^", "+", "-"} & set(text)
        text = text if plain else rf"\left({text}\right)"
        return f"{text}^{{{self.scalar(exponent)}}}"

    def _cases(self, args: tuple[Scalar, ...]) -> str:
        condition, taken, other = map(self.scalar, args)
        return (
            rf"\begin{{cases}} {taken} & \text{{if }} {condition} \\ "
            rf"{other} & \text{{otherwise}} \end{{cases}}"
        )

    def _sum(self, args: tuple[Scalar, ...]) -> str:
        text = self.scalar(args[0], ADD)
        for argument in args[1:]:
            if isinstance(argument, Apply) and argument.op == "neg":
                text += f" - {self.scalar(argument.args[0], MUL)}"
            else:
                text += f" + {self.scalar(argument, MUL)}"
        return text


def _number(value: float | int) -> str:
    text = number_text(value).replace("inf", r"\infty")
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text
    power = f"10^{{{int(exponent)}}}"
    return power if mantissa == "1" else rf"{mantissa} \cdot {power}"
