"""Factors of a product grouped by the index variables that they depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

from fwgen.algebra.products import Product, build_product
from fwgen.ir.nodes import Load, Scalar, Var
from fwgen.ir.walk import loads, variables


@dataclass(frozen=True, slots=True)
class Group:
    """Factors over the same variables, in the order of the statement's variables."""

    own: tuple[Var, ...]
    product: Product = field(default_factory=Product)

    @property
    def plain(self) -> bool:
        """Whether it is one element access already."""
        over, under = self.product.over, self.product.under
        alone = len(over) == 1 and not under and self.product.coefficient == 1
        return alone and isinstance(over[0], Load)

    @property
    def empty(self) -> bool:
        """Whether it is a mere coefficient."""
        return not self.product.over and not self.product.under


def ordered_variables(expression: Scalar, own: tuple[Var, ...]) -> tuple[Var, ...]:
    """Those of `own` that occur in an expression, in the order of `own`."""
    used = set(variables(expression))
    return tuple(var for var in own if var in used)


def axis_order(body: Scalar, own: tuple[Var, ...]) -> tuple[Var, ...]:
    """Variables in the order in which the widest access of the body has them."""
    best: list[Var] = []
    for load in loads(body):
        inner = [index.variable for index in load.index]
        plain = [var for var in inner if var is not None and var in own]
        if len(set(plain)) == len(plain) and len(plain) > len(best):
            best = plain
    return (*best, *(var for var in own if var not in best))


def narrow_groups(term: Product, own: tuple[Var, ...]) -> dict[tuple[Var, ...], Group]:
    """The factors of a product that depend on some variables only, by these."""
    groups: dict[tuple[Var, ...], Group] = {}
    parts = [Product(over=(factor,)) for factor in term.over]
    parts += [Product(under=(factor,)) for factor in term.under]
    for part in parts:
        used = ordered_variables((part.over or part.under)[0], own)
        if len(used) < len(own):
            old = groups.get(used, Group(used))
            groups[used] = Group(used, old.product.times(part))
    return groups


def merge_scalars(groups: dict[tuple[Var, ...], Group], coefficient: float) -> list[Group]:
    """Fold the group without variables, and the constant, into a group that becomes an array.

    Preferred is one that is compound anyway, then the one of the earliest axis (the value side).
    The sign alone is no reason to make one: it comes as a group without factors.
    """
    scalar = groups.get((), Group(()))
    others = [group for own, group in groups.items() if own]
    sign_only = scalar.empty and abs(coefficient) == 1
    if others and not (sign_only and all(group.plain for group in others)):
        place = next((n for n, group in enumerate(others) if not group.plain), None)
        if place is None:
            place = 0
        chosen = others[place]
        merged = scalar.product.times(chosen.product).scaled(coefficient)
        others[place] = Group(chosen.own, merged)
        return others
    if scalar.empty:
        return [Group((), Product(coefficient)), *others]
    if abs(coefficient) != 1 or not scalar.plain:
        return [Group((), scalar.product.scaled(coefficient)), *others]
    return [Group((), Product(coefficient)), scalar, *others]


def in_order(accesses: tuple[Scalar, ...], term: Product) -> tuple[Scalar, ...]:
    """Accesses without variables first, the others as they stood in the term."""
    place = {factor: n for n, factor in reversed(list(enumerate(term.over)))}

    def key(entry: tuple[int, Scalar]) -> tuple[int, int]:
        n, access = entry
        if not variables(access):
            return (-1, n)
        return (place.get(access, -1 if n else 0), n)

    return tuple(access for _, access in sorted(enumerate(accesses), key=key))


def split_factors(term: Product, over: tuple[Var, ...]) -> tuple[Product, Product]:
    """(What does not depend on the summed variables, with the coefficient; the rest.)"""

    def inside(factor: Scalar) -> bool:
        return bool(set(variables(factor)) & set(over))

    outer = Product(
        term.coefficient,
        tuple(f for f in term.over if not inside(f)),
        tuple(f for f in term.under if not inside(f)),
    )
    core = Product(1.0, tuple(filter(inside, term.over)), tuple(filter(inside, term.under)))
    return outer, core


def stays_whole(
    outer: Product, core: Product, over: tuple[Var, ...], free: tuple[Var, ...], alone: bool
) -> bool:
    """Whether a term of a sum stays in it: there is no factor to take out.

    A sum of one term is also freed of a sign, and of variables that the term is constant in. Terms
    beside others keep these, as `x[j] - mean` is not to be summed in two parts.
    """
    used = set(variables(build_product(core)))
    trivial = not outer.over and not outer.under and abs(outer.coefficient) == 1
    if alone:
        return trivial and outer.coefficient == 1 and used >= {*over, *free}
    return trivial or not used >= set(over)
