"""Readable text of Step IR: `p[i] = sum_j W[i, j] * kf[j]`, with a header of arrays and dims."""

from __future__ import annotations

from fwgen.ir.dims import ZERO, Dim
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
    Statement,
    Step,
)

OR, AND, NOT, COMPARE, ADD, MUL, POW, ATOM = range(8)
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_ROLES = (
    ("input", "inputs"),
    ("param", "params"),
    ("buffer", "buffers"),
    ("state", "states"),
    ("seed", "seeds"),
    ("local", "locals"),
)


def _parenthesised(text: str, inside: bool) -> str:
    return f"({text})" if inside else text


def index_text(index: Index) -> str:
    """An index expression: `i`, `K + i`, `(i - 1) mod n`."""
    text = ""
    for coefficient, var in index.terms:
        constant = coefficient.constant
        if constant in (1, -1):
            factor = var.name
        elif constant is None:
            inner = str(coefficient)
            factor = f"{_parenthesised(inner, len(coefficient.terms) > 1)}*{var.name}"
        else:
            factor = f"{abs(constant)}*{var.name}"
        negative = constant is not None and constant < 0
        text += (" - " if negative else " + ") + factor
    if index.offset != ZERO or not text:
        offset = str(index.offset)
        if index.terms and not offset.startswith("-"):
            text = f" + {offset}" + text
        else:
            text += f" - {offset[1:]}" if offset.startswith("-") else f" + {offset}"
    text = text[3:] if text.startswith(" + ") else "-" + text[3:]
    if index.modulo is None:
        return text
    compound = " " in text
    return f"{_parenthesised(text, compound)} mod {_dim_factor(index.modulo)}"


def _dim_factor(dim: Dim) -> str:
    return _parenthesised(str(dim), len(dim.terms) > 1)


def _element(array: str, index: tuple[Index, ...]) -> str:
    return f"{array}[{', '.join(map(index_text, index))}]" if index else array


def number_text(value: float | int) -> str:
    """The shortest decimal that reads back as the same number; whole floats without `.0`."""
    text = repr(value)
    return text.removesuffix(".0")


def scalar_text(expression: Scalar, context: int = OR) -> str:
    """A scalar expression, with parentheses only where `context` (a precedence) needs them."""
    text, precedence = _scalar(expression)
    return _parenthesised(text, precedence < context)


def _scalar(expression: Scalar) -> tuple[str, int]:
    match expression:
        case Const(value):
            return number_text(value), ADD if value < 0 else ATOM
        case Size(dim):
            return str(dim), ATOM if len(dim.terms) == 1 and len(dim.terms[0][0]) <= 1 else ADD
        case Position():
            return "t", ATOM
        case IndexValue(index):
            text = index_text(index)
            return text, ADD if " " in text or text.startswith("-") else ATOM
        case Load(array, index):
            return _element(array, index), ATOM
        case Apply(op, args):
            return _apply(op, args)


def _apply(op: str, args: tuple[Scalar, ...]) -> tuple[str, int]:
    match op:
        case "add":
            return _sum(args), ADD
        case "sub":
            return f"{scalar_text(args[0], ADD)} - {scalar_text(args[1], MUL)}", ADD
        case "neg":
            return f"-{scalar_text(args[0], MUL)}", ADD
        case "mul":
            first, *rest = args
            return " * ".join([scalar_text(first, MUL), *(scalar_text(a, POW) for a in rest)]), MUL
        case "div":
            return f"{scalar_text(args[0], MUL)} / {scalar_text(args[1], POW)}", MUL
        case "mod":
            return f"{scalar_text(args[0], MUL)} % {scalar_text(args[1], POW)}", MUL
        case "pow":
            return f"{scalar_text(args[0], ATOM)} ** {scalar_text(args[1], ATOM)}", POW
        case "not":
            return f"not {scalar_text(args[0], NOT)}", NOT
        case "and":
            return " and ".join(scalar_text(a, NOT) for a in args), AND
        case "or":
            return " or ".join(scalar_text(a, AND) for a in args), OR
        case _ if op in _COMPARISONS:
            left, right = (scalar_text(a, ADD) for a in args)
            return f"{left} {_COMPARISONS[op]} {right}", COMPARE
        case _:
            return f"{op}({', '.join(map(scalar_text, args))})", ATOM


def _sum(args: tuple[Scalar, ...]) -> str:
    text = scalar_text(args[0], ADD)
    for argument in args[1:]:
        if isinstance(argument, Apply) and argument.op == "neg":
            text += f" - {scalar_text(argument.args[0], MUL)}"
        else:
            text += f" + {scalar_text(argument, MUL)}"
    return text


def statement_text(statement: Statement) -> str:
    """One statement on one line: `p[i] = sum_j W[i, j] * kf[j]`."""
    target = _element(statement.target, statement.index)
    equals = "+=" if statement.accumulate else "="
    if statement.reduce is None:
        return f"{target} {equals} {scalar_text(statement.body)}"
    names = [var.name for var in statement.over]
    joined = ("" if all(len(name) == 1 for name in names) else ",").join(names)
    return f"{target} {equals} {statement.reduce}_{joined} {scalar_text(statement.body, MUL)}"


def _header(arrays: tuple[Array, ...]) -> list[str]:
    lines = []
    for role, title in _ROLES:
        texts = [
            f"{a.name}[{', '.join(map(str, a.dims))}]" if a.dims else a.name
            for a in arrays
            if a.role == role
        ]
        if texts:
            lines.append(f"  {title + ':':9}{', '.join(texts)}")
    return lines


def _body(statements: tuple[Statement, ...]) -> list[str]:
    left = [_element(s.target, s.index) for s in statements]
    width = min(max(map(len, left), default=0), 16)
    lines = []
    for target, statement in zip(left, statements, strict=True):
        rest = statement_text(statement)[len(target) :]
        lines.append(f"  {target:{width}}{rest}")
    return lines


def dump(ir: Step | Backward) -> str:
    """A header of arrays and dims, then one line per statement; ends with a newline."""
    if isinstance(ir, Backward):
        lines = [f"backward of {ir.forward.name}", *_header(ir.arrays), "", *_body(ir.statements)]
        lines += ["", "  gradients:"]
        lines += [f"    {name}: {adjoint or 'zero'}" for name, adjoint in ir.results]
        return "\n".join(lines) + "\n"
    lines = [f"step {ir.name}", *_header(ir.arrays)]
    if ir.dims:
        lines.append("  dims:    " + ", ".join(f"{name} = {dim}" for name, dim in ir.dims))
    lines += ["", *_body(ir.statements), ""]
    lines += [f"  next {state.old} = {state.new}" for state in ir.states]
    lines.append(f"  output {ir.output}")
    return "\n".join(lines) + "\n"
