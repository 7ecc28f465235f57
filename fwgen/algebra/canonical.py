"""When two scalar expressions are equal: canonical polynomials in opaque atoms, as hashable keys.

Sums and products are expanded (up to a bound), everything else is an atom that is compared by its
structure. Equal keys mean equal values up to rounding; the reverse does not hold. Keys hold only
strings and numbers and are sorted, so they do not depend on the hash seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Apply, Const, Index, IndexValue, Load, Position, Scalar, Size, Var
from fwgen.ir.walk import substitute

Monomial = tuple[str, ...]
Polynomial = dict[Monomial, float]

MOST_MONOMIALS = 64
LONGEST_TEXT = 2000
COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "and", "or", "eq", "ne"})


def _index_text(index: Index) -> str:
    terms = "+".join(f"({c})*{v.name}:{v.dim}" for c, v in index.terms)
    return f"{terms}+{index.offset}" + (f"%{index.modulo}" if index.modulo is not None else "")


@lru_cache(maxsize=65536)
def atom_text(expression: Scalar) -> str:
    """The structure of an expression as text; arguments of commutative operations are sorted."""
    match expression:
        case Const(value):
            return repr(float(value))
        case Size(dim):
            return f"size({dim})"
        case Position():
            return "t"
        case IndexValue(index):
            return f"at({_index_text(index)})"
        case Load(array, index):
            return f"{array}[{', '.join(map(_index_text, index))}]"
        case Apply(op, args):
            keys = [str(canonical(argument)) for argument in args]
            if op in COMMUTATIVE:
                keys.sort()
            text = f"{op}({'; '.join(keys)})"
            # A text inside a text is quoted once more at every level, which doubles it.
            long = len(text) > LONGEST_TEXT
            return f"{op}#{hashlib.sha256(text.encode()).hexdigest()}" if long else text


def _times(left: Polynomial, right: Polynomial) -> Polynomial | None:
    if len(left) * len(right) > MOST_MONOMIALS:
        return None
    total: Polynomial = {}
    for m, c in left.items():
        for n, d in right.items():
            key = tuple(sorted(m + n))
            total[key] = total.get(key, 0.0) + c * d
    return total


def _plus(parts: Iterable[tuple[Polynomial, float]]) -> Polynomial:
    total: Polynomial = {}
    for polynomial, factor in parts:
        for monomial, coefficient in polynomial.items():
            total[monomial] = total.get(monomial, 0.0) + factor * coefficient
    return {m: c for m, c in total.items() if c != 0}


def _product(args: Sequence[Scalar]) -> Polynomial | None:
    result: Polynomial | None = {(): 1.0}
    for argument in args:
        if result is None:
            return None
        result = _times(result, polynomial(argument))
    return result


def polynomial(expression: Scalar) -> Polynomial:
    """The expression as coefficients of monomials in atoms."""
    result: Polynomial | None = None
    match expression:
        case Const(value):
            result = {(): float(value)} if value else {}
        case Apply("add", args):
            result = _plus((polynomial(argument), 1.0) for argument in args)
        case Apply("sub", (left, right)):
            result = _plus([(polynomial(left), 1.0), (polynomial(right), -1.0)])
        case Apply("neg", (inner,)):
            result = _plus([(polynomial(inner), -1.0)])
        case Apply("mul", args):
            result = _product(args)
        case Apply("square", (inner,)):
            result = _product((inner, inner))
        case Apply("div", (numerator, divisor)) if numerator not in (Const(1), Const(1.0)):
            result = _product((numerator, Apply("div", (Const(1.0), divisor))))
    return {(atom_text(expression),): 1.0} if result is None else result


@lru_cache(maxsize=65536)
def canonical(expression: Scalar) -> tuple[tuple[Monomial, float], ...]:
    """A key that is equal for expressions that are equal as polynomials in their atoms."""
    return tuple(sorted(polynomial(expression).items()))


def nameless(expression: Scalar, axes: Sequence[Var]) -> Scalar:
    """The expression with its variables renamed by position, so that keys can be compared."""
    places = {v: Index.of(Var(f"axis{n}", v.dim)) for n, v in enumerate(axes)}
    return substitute(expression, places)


def key_of(expression: Scalar, axes: Sequence[Var]) -> tuple[object, ...]:
    """A key of the array that the expression defines over `axes`."""
    sizes: tuple[Dim, ...] = tuple(v.dim for v in axes)
    return (sizes, canonical(nameless(expression, axes)))
