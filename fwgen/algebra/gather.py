"""Several contributions to one adjoint as one short expression.

Equal ones are added, common factors stand outside, and where the canonical polynomial in opaque
atoms (sympy) needs fewer operations than that, it takes its place: the two contributions of x in
`x * (1 - x)` become `g * (1 - 2 * x)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import sympy

from fwgen.algebra.freeze import Atoms, freeze, thaw
from fwgen.algebra.products import Product, build_product, build_sum, collect, product_of, terms_of
from fwgen.ir.nodes import Apply, Scalar
from fwgen.ir.walk import scalars

_INFINITE = (sympy.zoo, sympy.nan, sympy.oo, -sympy.oo)


def gathered(products: Sequence[Product]) -> Product:
    """The sum of products as one product, whose common factors can be told from the rest."""
    kept = collect(products)
    if len(kept) < 2:
        return kept[0] if kept else Product(0.0)
    factored = _factored(kept)
    atoms = Atoms()
    whole = build_sum(build_product(product) for product in kept)
    polynomial = sympy.factor_terms(sympy.expand(thaw(whole, atoms, polynomial=True)))
    if polynomial.has(*_INFINITE):  # a divisor cancels to zero: what it is, the kernel finds out
        return factored
    canonical = freeze(polynomial, atoms)
    shorter = _operations(canonical) < _operations(build_product(factored))
    return product_of(canonical) if shorter else factored


def _factored(products: Sequence[Product]) -> Product:
    """common * (sum of what is left), common factors in the order of the first product."""
    over, under = Counter(products[0].over), Counter(products[0].under)
    for product in products[1:]:
        over &= Counter(product.over)
        under &= Counter(product.under)
    rest = [
        Product(p.coefficient, _without(p.over, over), _without(p.under, under)) for p in products
    ]
    flat = collect(term for product in rest for term in terms_of(build_product(product)))
    ordered = sorted(flat, key=lambda product: product.coefficient < 0)
    inner = build_sum(map(build_product, ordered))
    common = Product(1.0, _only(products[0].over, over), _only(products[0].under, under))
    return common.times(Product(over=(inner,)))


def _without(factors: tuple[Scalar, ...], common: Counter[Scalar]) -> tuple[Scalar, ...]:
    left, kept = Counter(common), []
    for factor in factors:
        if left[factor]:
            left[factor] -= 1
        else:
            kept.append(factor)
    return tuple(kept)


def _only(factors: tuple[Scalar, ...], common: Counter[Scalar]) -> tuple[Scalar, ...]:
    left, kept = Counter(common), []
    for factor in factors:
        if left[factor]:
            left[factor] -= 1
            kept.append(factor)
    return tuple(kept)


def _operations(expression: Scalar) -> int:
    """How many scalar operations an expression takes; a negation beside others is free."""
    total = 0
    for node in scalars(expression):
        if isinstance(node, Apply) and node.op != "neg":
            total += len(node.args) - 1 if node.op in ("add", "mul") else 1
    return total
