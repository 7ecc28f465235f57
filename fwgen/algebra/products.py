"""Scalar expressions as sums of products: taking them apart and building them cleanly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fwgen.ir.nodes import Apply, Const, Scalar

ZERO = Const(0.0)
ONE = Const(1.0)


@dataclass(frozen=True, slots=True)
class Product:
    """coefficient * (product of `over`) / (product of `under`); factors keep their order."""

    coefficient: float = 1.0
    over: tuple[Scalar, ...] = ()
    under: tuple[Scalar, ...] = ()

    def times(self, other: Product) -> Product:
        """The product of both; the factors of `self` come first."""
        coefficient = self.coefficient * other.coefficient
        return Product(coefficient, self.over + other.over, self.under + other.under)

    def scaled(self, factor: float) -> Product:
        """The product with its coefficient multiplied."""
        return Product(self.coefficient * factor, self.over, self.under)


def product_of(expression: Scalar) -> Product:
    """Flatten `mul`, `neg` and `div`; everything else is one factor. Divisors stay whole."""
    match expression:
        case Const(value):
            return Product(float(value))
        case Apply("neg", (inner,)):
            return product_of(inner).scaled(-1.0)
        case Apply("mul", args):
            total = Product()
            for argument in args:
                total = total.times(product_of(argument))
            return total
        case Apply("div", (numerator, divisor)):
            return product_of(numerator).times(Product(under=(divisor,)))
        case _:
            return Product(over=(expression,))


def terms_of(expression: Scalar) -> list[Product]:
    """Flatten `add`, `sub` and `neg` into products; products are not multiplied out."""
    match expression:
        case Apply("add", args):
            return [term for argument in args for term in terms_of(argument)]
        case Apply("sub", (left, right)):
            return terms_of(left) + [term.scaled(-1.0) for term in terms_of(right)]
        case Apply("neg", (Apply(("add" | "sub" | "neg"), _) as inner,)):
            return [term.scaled(-1.0) for term in terms_of(inner)]
        case _:
            return [product_of(expression)]


def multiply(factors: Iterable[Scalar]) -> Scalar:
    """The product of expressions as one `mul`, without `1 *`; an empty product is 1."""
    kept = [factor for factor in factors if factor != ONE]
    if not kept:
        return ONE
    return kept[0] if len(kept) == 1 else Apply("mul", tuple(kept))


def build_product(product: Product) -> Scalar:
    """A product as an expression: no `1 *`, the sign outside, one division."""
    if product.coefficient == 0:
        return ZERO
    magnitude = abs(product.coefficient)
    result = multiply((Const(magnitude), *product.over))
    if product.under:
        result = Apply("div", (result, multiply(product.under)))
    if product.coefficient > 0:
        return result
    if isinstance(result, Const):
        return Const(-result.value)
    return Apply("neg", (result,))


def build_sum(terms: Iterable[Scalar]) -> Scalar:
    """The sum of expressions without `+ 0`; an empty sum is 0."""
    kept = [term for term in terms if term != ZERO]
    if not kept:
        return ZERO
    return kept[0] if len(kept) == 1 else Apply("add", tuple(kept))


def collect(products: Iterable[Product]) -> list[Product]:
    """Add the coefficients of products with the same factors (in any order); drop zeros."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], Product] = {}
    for product in products:
        key = (tuple(sorted(map(repr, product.over))), tuple(sorted(map(repr, product.under))))
        old = found.get(key, Product(0.0, product.over, product.under))
        total = old.coefficient + product.coefficient
        found[key] = Product(total, old.over, old.under)
    return [product for product in found.values() if product.coefficient != 0]
