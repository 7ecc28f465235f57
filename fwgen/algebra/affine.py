"""The abstract domain of the normal form: sums of products that separate into factors per axis.

The value of an element-wise expression over several axes is a list of `Part`s, each

    +-1 * (factors of at most one variable)... * (wide factors)... * base

where `base` is an element of a matrix that stays an array (a state before or after the token).
A version `W_k` of a state is affine where its parts have the base `W` or none, and no wide factor:
`W_k = D W + sum_g y_g (x) c_g`. A wide factor is the domain's top: an expression over two or more
variables that does not separate, such as `tanh(W[i, j])` or an element of an input matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from fwgen.algebra.canonical import MOST_MONOMIALS, canonical
from fwgen.ir.nodes import Apply, Const, Index, Load, Scalar, Var
from fwgen.ir.walk import is_constant, loads, substitute, variables

ONE = Const(1.0)


@dataclass(frozen=True, slots=True)
class Part:
    """A signed product; `narrow` factors have at most one variable each, `wide` ones more."""

    base: Load | None = None
    narrow: tuple[Scalar, ...] = ()
    wide: tuple[Scalar, ...] = ()
    negative: bool = False

    def side(self, axis: Var | None) -> tuple[Scalar, ...]:
        """The narrow factors over `axis`; those without a variable for None."""
        wanted = [] if axis is None else [axis]
        return tuple(factor for factor in self.narrow if variables(factor) == wanted)

    def without(self, axis: Var) -> Part:
        """The part less its narrow factors over `axis`."""
        return replace(self, narrow=tuple(f for f in self.narrow if axis not in variables(f)))

    def times(self, other: Part) -> Part:
        """The product; of two bases the second becomes a wide factor."""
        wide = (*self.wide, *other.wide)
        if self.base is not None and other.base is not None:
            wide = (*wide, other.base)
        base = self.base if self.base is not None else other.base
        sign = self.negative != other.negative
        return Part(base, (*self.narrow, *other.narrow), wide, sign)


def negated(parts: Iterable[Part]) -> list[Part]:
    """The parts with their signs turned."""
    return [replace(part, negative=not part.negative) for part in parts]


def factors(expression: Scalar) -> tuple[bool, tuple[Scalar, ...]]:
    """Sign and factors of a product; quotients stay whole."""
    match expression:
        case Apply("mul", args):
            negative = False
            found: tuple[Scalar, ...] = ()
            for argument in args:
                sign, inner = factors(argument)
                negative, found = negative != sign, (*found, *inner)
            return negative, found
        case Apply("neg", (inner_expression,)):
            sign, inner = factors(inner_expression)
            return not sign, inner
        case Const(value) if value < 0:
            return True, () if value == -1 else (Const(-value),)
        case _:
            return False, () if is_constant(expression, 1) else (expression,)


def product(items: Iterable[Scalar], negative: bool = False) -> Scalar:
    """The product as an expression, one quotient at most; 1 for no factors."""
    over: list[Scalar] = []
    under: list[Scalar] = []
    for item in items:
        match item:
            case Apply("div", (Const(value), divisor)) if value == 1:
                under.append(divisor)
            case _:
                over.append(item)
    result = over[0] if len(over) == 1 else Apply("mul", tuple(over)) if over else ONE
    if under:
        divisor = under[0] if len(under) == 1 else Apply("mul", tuple(under))
        result = Apply("div", (result, divisor))
    return Apply("neg", (result,)) if negative else result


def total(items: Sequence[tuple[bool, Scalar]]) -> Scalar:
    """The sum of signed expressions, those with a plus first; 0 for none."""
    plus = [item for negative, item in items if not negative]
    minus = [item for negative, item in items if negative]
    if not plus and not minus:
        return Const(0.0)
    if not plus:
        inner = minus[0] if len(minus) == 1 else Apply("add", tuple(minus))
        return Apply("neg", (inner,))
    result = plus[0] if len(plus) == 1 else Apply("add", tuple(plus))
    for item in minus:
        result = Apply("sub", (result, item))
    return result


@dataclass(frozen=True, slots=True)
class Domain:
    """How accesses are read: `names` are the arrays that `resolve` expands into parts.

    `opaque` gives the expression that stands for an application the domain can't see through.
    """

    names: Collection[str]
    resolve: Callable[[Load], Sequence[Part] | None]
    opaque: Callable[[Apply], Scalar]

    def touches(self, expression: Scalar) -> bool:
        """Whether an expression accesses an array that `resolve` knows."""
        return any(load.array in self.names for load in loads(expression))

    def value(self, expression: Scalar) -> list[Part]:
        """The parts of an expression."""
        if not self.touches(expression) and len(variables(expression)) <= 1:
            return [atom(expression)]
        match expression:
            case Apply("add", args):
                return [part for argument in args for part in self.value(argument)]
            case Apply("sub", (left, right)):
                return self.value(left) + negated(self.value(right))
            case Apply("neg", (inner,)):
                return negated(self.value(inner))
            case Apply("mul", args):
                return self._product(expression, [self.value(argument) for argument in args])
            case Apply("div", (numerator, divisor)) if self._narrow(divisor):
                inverse = atom(Apply("div", (ONE, divisor)))
                return [part.times(inverse) for part in self.value(numerator)]
            case Apply("square", (inner,)) if self._one(found := self.value(inner)):
                return [found[0].times(found[0])]
            case Apply():
                return [atom(self.opaque(expression))]
            case Load():
                parts = self.resolve(expression) if expression.array in self.names else None
                return [atom(expression)] if parts is None else list(parts)
            case _:
                return [atom(expression)]

    @staticmethod
    def _one(parts: Sequence[Part]) -> bool:
        return len(parts) == 1 and parts[0].base is None and not parts[0].wide

    def _narrow(self, expression: Scalar) -> bool:
        return not self.touches(expression) and len(variables(expression)) <= 1

    def _product(self, whole: Apply, values: list[list[Part]]) -> list[Part]:
        count = 1
        for parts in values:
            count *= len(parts)
        if count > MOST_MONOMIALS:
            return [atom(self.opaque(whole))]
        result = [Part()]
        for parts in values:
            result = [left.times(right) for left in result for right in parts]
        return result


def atom(expression: Scalar) -> Part:
    """A single factor, or the factors of a product, as a part without a base."""
    negative, found = factors(expression)
    narrow = tuple(f for f in found if len(variables(f)) <= 1)
    return Part(None, narrow, tuple(f for f in found if len(variables(f)) > 1), negative)


def renamed(part: Part, places: dict[Var, Index]) -> Part:
    """The part with its index variables replaced."""

    def change(items: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        return tuple(substitute(item, places) for item in items)

    base = None if part.base is None else substitute(part.base, places)
    assert base is None or isinstance(base, Load)
    return replace(part, base=base, narrow=change(part.narrow), wide=change(part.wide))


def merged(parts: Sequence[Part], axes: Sequence[Var]) -> Part | None:
    """Parts of one base as one product of factors per axis; None where the sum doesn't separate."""
    if len(parts) == 1:
        return parts[0]
    if any(part.wide for part in parts):
        return None
    differing = [axis for axis in axes if len({_side_key(part, axis) for part in parts}) > 1]
    if len(differing) > 1:
        return None
    own = differing[0] if differing else None
    common = tuple(f for axis in axes if axis != own for f in parts[0].side(axis))
    items = [(p.negative, product((*p.side(None), *(p.side(own) if own else ())))) for p in parts]
    return Part(parts[0].base, (total(items), *common))


def _side_key(part: Part, axis: Var) -> object:
    return canonical(product(part.side(axis)))


def collapsed(parts: Sequence[Part], axes: Sequence[Var]) -> list[Part]:
    """Add up what has the same base, and writes with equal factors over one axis (last first)."""
    groups: dict[object, list[Part]] = {}
    for part in parts:
        groups.setdefault(None if part.base is None else canonical(part.base), []).append(part)
    result: list[Part] = []
    for key, group in groups.items():
        one = merged(group, axes) if key is not None else None
        if key is not None:
            result.extend(group if one is None else [one])
            continue
        for axis in reversed(axes):
            group = _joined(group, axis, axes)
        result.extend(group)
    return result


def _joined(parts: Sequence[Part], axis: Var, axes: Sequence[Var]) -> list[Part]:
    groups: dict[object, list[Part]] = {}
    for number, part in enumerate(parts):
        groups.setdefault(number if part.wide else _side_key(part, axis), []).append(part)
    result: list[Part] = []
    for group in groups.values():
        one = merged(group, axes)
        result.extend(group if one is None else [one])
    return result
