"""The border to sympy: scalar expressions over opaque atoms, there and back.

Element accesses, sizes and the position are opaque symbols named by first use, so that sympy's
order of terms depends on the expression alone and not on a hash seed. Nothing is parsed from text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

from fwgen.algebra.products import Product, build_product, build_sum
from fwgen.errors import InternalError
from fwgen.ir.nodes import Apply, Const, Scalar

Expr = Any
"""A sympy expression (sympy has no type information)."""

_ARITHMETIC: dict[str, Callable[..., Expr]] = {
    "add": lambda *args: sympy.Add(*args),
    "mul": lambda *args: sympy.Mul(*args),
    "sub": lambda a, b: a - b,
    "neg": lambda a: -a,
    "div": lambda a, b: a / b,
    "square": lambda a: a**2,
}

_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "pow": lambda a, b: a**b,
    "exp": sympy.exp,
    "log": sympy.log,
    "log1p": lambda x: sympy.log(1 + x),
    "expm1": lambda x: sympy.exp(x) - 1,
    "sqrt": sympy.sqrt,
    "rsqrt": lambda x: 1 / sympy.sqrt(x),
    "abs": sympy.Abs,
    "sign": sympy.sign,
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tanh": sympy.tanh,
    "sigmoid": lambda x: 1 / (1 + sympy.exp(-x)),
    "logsigmoid": lambda x: -sympy.log(1 + sympy.exp(-x)),
    "softplus": lambda x: sympy.log(1 + sympy.exp(x)),
    "relu": lambda x: sympy.Piecewise((x, x > 0), (0, True)),
    "elu": lambda x: sympy.Piecewise((x, x > 0), (sympy.exp(x) - 1, True)),
    "silu": lambda x: x / (1 + sympy.exp(-x)),
    "gelu": lambda x: x * (1 + sympy.erf(x / sympy.sqrt(2))) / 2,
    "erf": sympy.erf,
    "maximum": lambda a, b: sympy.Piecewise((a, a > b), (b, True)),
    "minimum": lambda a, b: sympy.Piecewise((a, a < b), (b, True)),
    "clamp": lambda x, a, b: sympy.Piecewise((a, x < a), (b, x > b), (x, True)),
    "select": lambda c, a, b: sympy.Piecewise((a, c), (b, True)),
    "lt": sympy.StrictLessThan,
    "le": sympy.LessThan,
    "gt": sympy.StrictGreaterThan,
    "ge": sympy.GreaterThan,
    "eq": sympy.Equality,
    "ne": sympy.Unequality,
    "and": sympy.And,
    "or": sympy.Or,
    "not": sympy.Not,
}


class Atoms:
    """Opaque symbols for scalar expressions, one per expression, numbered by first use."""

    def __init__(self) -> None:
        self.symbols: dict[Scalar, Expr] = {}
        self.scalars: dict[Expr, Scalar] = {}

    def symbol(self, expression: Scalar) -> Expr:
        """The symbol that stands for an expression."""
        if expression not in self.symbols:
            symbol = sympy.Symbol(f"a{len(self.symbols):06d}", real=True)
            self.symbols[expression] = symbol
            self.scalars[symbol] = expression
        return self.symbols[expression]


def thaw(expression: Scalar, atoms: Atoms, polynomial: bool = False) -> Expr:
    """As a sympy expression. With `polynomial` every function is an opaque atom as well."""
    match expression:
        case Const(value) if isinstance(value, int) or float(value).is_integer():
            return sympy.Integer(int(value))
        case Const(value):
            return sympy.Float(repr(value))
        case Apply(op, args) if op in _ARITHMETIC:
            return _ARITHMETIC[op](*(thaw(argument, atoms, polynomial) for argument in args))
        case Apply("pow", (base, Const(n))) if float(n).is_integer():
            return thaw(base, atoms, polynomial) ** int(n)
        case Apply("stop_gradient", _):
            return atoms.symbol(expression)
        case Apply(op, args) if op in _FUNCTIONS and not polynomial:
            return _FUNCTIONS[op](*(thaw(argument, atoms) for argument in args))
        case _:
            return atoms.symbol(expression)


def same(a: Scalar, b: Scalar) -> bool:
    """Whether two expressions are equal as rational functions of opaque atoms."""
    atoms = Atoms()
    difference = thaw(a, atoms, polynomial=True) - thaw(b, atoms, polynomial=True)
    numerator, _ = sympy.fraction(sympy.together(difference))
    return bool(sympy.expand(numerator) == 0)


def freeze(expression: Expr, atoms: Atoms) -> Scalar:
    """A polynomial, or quotient, or simple function of atoms as a scalar expression.

    Terms and factors come in sympy's canonical order, negative terms last. Raises InternalError for
    anything that Step IR has no operation for.
    """
    if expression.is_Symbol:
        return atoms.scalars[expression]
    if expression.is_Number:
        return Const(float(expression))
    if expression.is_Add:
        terms = expression.as_ordered_terms()
        signs = [term.could_extract_minus_sign() for term in terms]
        ordered = sorted(zip(signs, terms, strict=True), key=lambda pair: pair[0])
        return build_sum(freeze(term, atoms) for _, term in ordered)
    if expression.is_Mul:
        return build_product(_frozen_product(expression, atoms))
    if expression.is_Pow:
        return _frozen_power(expression, atoms)
    name = _NAMES.get(expression.func)
    if name is None:
        raise InternalError(f"sympy's {expression.func.__name__} has no counterpart in Step IR")
    return Apply(name, tuple(freeze(argument, atoms) for argument in expression.args))


_NAMES: dict[Any, str] = {
    sympy.exp: "exp",
    sympy.log: "log",
    sympy.Abs: "abs",
    sympy.sign: "sign",
    sympy.sin: "sin",
    sympy.cos: "cos",
    sympy.tanh: "tanh",
    sympy.erf: "erf",
}


def _frozen_product(expression: Expr, atoms: Atoms) -> Product:
    product = Product()
    for factor in expression.as_ordered_factors():
        if factor.is_Number:
            product = product.scaled(float(factor))
        elif factor.is_Pow and factor.exp == -1:
            product = product.times(Product(under=(freeze(factor.base, atoms),)))
        elif factor.is_Pow and factor.exp.is_Number and factor.exp < 0 and factor.exp.is_Integer:
            product = product.times(Product(under=(freeze(1 / factor, atoms),)))
        else:
            product = product.times(Product(over=(freeze(factor, atoms),)))
    return product


def _frozen_power(expression: Expr, atoms: Atoms) -> Scalar:
    base, exponent = freeze(expression.base, atoms), expression.exp
    if exponent == 2:
        return Apply("square", (base,))
    if exponent == -1:
        return Apply("div", (Const(1.0), base))
    if exponent == sympy.Rational(1, 2):
        return Apply("sqrt", (base,))
    if exponent == sympy.Rational(-1, 2):
        return Apply("rsqrt", (base,))
    return Apply("pow", (base, freeze(exponent, atoms)))
