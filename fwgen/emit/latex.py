r"""LaTeX of Step IR in index notation: `p_{i} = \sum_{j} W_{i,j}\, k_{j}`."""

from __future__ import annotations

import re

from fwgen.ir.dims import Dim
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
)
from fwgen.ir.text import index_text, number_text

OR, AND, COMPARE, ADD, MUL, ATOM = range(6)
_LETTERS = """alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau
phi chi psi omega"""
_GREEK = frozenset(_LETTERS.split())
_RELATIONS = {"lt": "<", "le": r"\le", "gt": ">", "ge": r"\ge", "eq": "=", "ne": r"\ne"}
_COMMANDS = {"exp", "log", "sin", "cos", "tanh", "max", "min"}


def statement_latex(statement: Statement) -> str:
    """One equation."""
    sign = r"\mathrel{+}=" if statement.accumulate else "="
    level = MUL if statement.reduce else OR
    body = _at(statement.body, level)
    over = ",".join(var.name for var in statement.over)
    fold = {"sum": r"\sum", "max": r"\max", "min": r"\min"}.get(statement.reduce or "", "")
    prefix = rf"{fold}_{{{over}}} " if fold else ""
    return f"{_element(statement.target, statement.index)} {sign} {prefix}{body}"


def symbol(name: str) -> str:
    r"""An array's name: `beta` -> `\beta`, `W_1` -> `W^{(1)}`, `d_kf` -> `\bar{\mathrm{kf}}`."""
    if name.startswith("d_") and len(name) > 2:
        return rf"\bar{{{symbol(name[2:])}}}"
    found = re.fullmatch(r"(.*[^_\d])_(\d+)", name)
    if found:
        return rf"{symbol(found[1])}^{{({found[2]})}}"
    if name in _GREEK:
        return "\\" + name
    escaped = name.replace("_", r"\_")
    return escaped if len(name) == 1 else rf"\mathrm{{{escaped}}}"


def _element(array: str, index: tuple[Index, ...]) -> str:
    if not index:
        return symbol(array)
    return f"{symbol(array)}_{{{','.join(_index(i) for i in index)}}}"


def _index(index: Index) -> str:
    return index_text(index).replace("*", r"\,").replace(" mod ", r" \bmod ")


def _dim(dim: Dim) -> str:
    return str(dim).replace("*", r"\,")


def _at(expression: Scalar, level: int) -> str:
    text, own = _scalar(expression)
    return text if own >= level else rf"\left({text}\right)"


def _scalar(expression: Scalar) -> tuple[str, int]:
    match expression:
        case Const(value):
            return _number(value), ADD if value < 0 else ATOM
        case Size(dim):
            return _dim(dim), ADD if len(dim.terms) > 1 else MUL
        case Position():
            return "t", ATOM
        case IndexValue(index):
            return _index(index), ADD
        case Load(array, index):
            return _element(array, index), ATOM
        case Apply(op, args):
            return _apply(op, args)


def _number(value: float | int) -> str:
    text = number_text(value).replace("inf", r"\infty")
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text
    power = f"10^{{{int(exponent)}}}"
    return power if mantissa == "1" else rf"{mantissa} \cdot {power}"


def _apply(op: str, args: tuple[Scalar, ...]) -> tuple[str, int]:
    match op:
        case "add":
            return _sum(args), ADD
        case "sub":
            return f"{_at(args[0], ADD)} - {_at(args[1], MUL)}", ADD
        case "neg":
            return f"-{_at(args[0], MUL)}", ADD
        case "mul":
            return r"\, ".join(_at(a, MUL) for a in args), MUL
        case "div":
            return rf"\frac{{{_at(args[0], OR)}}}{{{_at(args[1], OR)}}}", ATOM
        case "mod":
            return rf"{_at(args[0], MUL)} \bmod {_at(args[1], ATOM)}", MUL
        case "pow" | "square":
            power = _at(args[1], OR) if op == "pow" else "2"
            return rf"{{{_at(args[0], ATOM)}}}^{{{power}}}", MUL
        case "sqrt":
            return rf"\sqrt{{{_at(args[0], OR)}}}", ATOM
        case "rsqrt":
            return rf"\frac{{1}}{{\sqrt{{{_at(args[0], OR)}}}}}", ATOM
        case "abs":
            return rf"\left|{_at(args[0], OR)}\right|", ATOM
        case "select":
            condition, taken, other = (_at(a, OR) for a in args)
            return (
                rf"\begin{{cases}} {taken} & \text{{if }} {condition} \\ "
                rf"{other} & \text{{otherwise}} \end{{cases}}"
            ), ATOM
        case "and":
            return r" \land ".join(_at(a, COMPARE) for a in args), AND
        case "or":
            return r" \lor ".join(_at(a, AND) for a in args), OR
        case "not":
            return rf"\lnot {_at(args[0], ATOM)}", COMPARE
        case _ if op in _RELATIONS:
            return f"{_at(args[0], ADD)} {_RELATIONS[op]} {_at(args[1], ADD)}", COMPARE
        case _:
            name = {"maximum": "max", "minimum": "min"}.get(op, op)
            escaped = name.replace("_", r"\_")
            head = "\\" + name if name in _COMMANDS else rf"\mathrm{{{escaped}}}"
            return rf"{head}\left({', '.join(_at(a, OR) for a in args)}\right)", ATOM


def _sum(args: tuple[Scalar, ...]) -> str:
    text = _at(args[0], ADD)
    for argument in args[1:]:
        if isinstance(argument, Apply) and argument.op == "neg":
            text += f" - {_at(argument.args[0], MUL)}"
        else:
            text += f" + {_at(argument, MUL)}"
    return text
