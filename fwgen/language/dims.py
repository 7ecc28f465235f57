"""Sizes in a rule: reading polynomials, and deciding when two sizes are equal."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fwgen.ir.dims import ONE, ZERO, Dim
from fwgen.language.names import fault_of_dim

Constants = Mapping[str, int | float]
LARGEST = 2**31
MOST_INFERRED = 100
PLAIN = re.compile(r"[ !$-~]*")


class DimError(Exception):
    """A size that cannot be read; the text says why."""


def parse_dim(text: str, constants: Constants) -> Dim:
    """A name, an integer, a constant's name, or a polynomial in these. Raises DimError."""
    try:
        if not PLAIN.fullmatch(text.strip()):  # Python takes other letters for these, and comments
            raise ValueError
        node = ast.parse(text.strip(), mode="eval").body
        dim = _dim(node, constants)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise DimError(f"`{text}` is no size" if text.strip() else "a size is missing") from None
    value = dim.constant
    if value is not None and not 0 < value < LARGEST:
        raise DimError(f"`{text}` is {value}; a size is at least 1")
    return dim


def _dim(node: ast.expr, constants: Constants) -> Dim:
    match node:
        case ast.Constant(value=value) if type(value) is int and value < LARGEST:
            return Dim.of(value)
        case ast.Name(id=name) if name in constants:
            value = constants[name]
            if value != int(value):
                raise DimError(f"the constant `{name}` is {value}; a size is an integer")
            return Dim.of(int(value))
        case ast.Name(id=name):
            if fault := fault_of_dim(name):
                raise DimError(fault)
            return Dim.of(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return ARITHMETIC[type(op)](_dim(left, constants), _dim(right, constants))
    shown = ast.unparse(node).strip("()")
    raise DimError(f"`{shown}` is no size: write names, integers, `+`, `-` and `*`")


def hint_of(text: str) -> str | None:
    """A way out for a text that is no size, such as `V K`, `(V, K)` or `2K`."""
    text = text.strip()
    words = re.findall(r"\w+", text)
    if not words:
        return "write a name, a list such as `[V, K]`, or `scalar`"
    if product := re.fullmatch(r"(\d+)\s*([A-Za-z]\w*)", text):
        return f"a product is `{product[1]}*{product[2]}`"
    apart = len(words) > 1 and re.fullmatch(r"[(\[]?[\w\s,;×]+[)\]]?", text)
    return f"a list of sizes is `[{', '.join(w for w in words if w != 'x')}]`" if apart else None


def power(base: Dim, exponent: Dim) -> Dim:
    """`base ** exponent` for a small constant exponent. Raises DimError."""
    count = exponent.constant
    if count is None or not 0 <= count <= 64:
        raise DimError("an exponent here is a small constant integer")
    result = ONE
    for _ in range(count):
        result = result * base
        bounded(result)
    return result


ARITHMETIC: dict[type[ast.operator], Callable[[Dim, Dim], Dim]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: bounded(a * b),
    ast.Pow: power,
}


def bounded(dim: Dim) -> Dim:
    """The dim, unless it grew beyond what a rule can mean. Raises DimError."""
    terms = dim.terms
    if len(terms) > 64 or any(len(m) > 8 or abs(c) > LARGEST**2 for m, c in terms):
        raise DimError("the size grows too large")
    return dim


def put_in(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """The dim with polynomials for some of its names. Raises DimError where it grows too large."""
    if not any(name in values for monomial, _ in dim.terms for name in monomial):
        return dim
    total = ZERO
    for monomial, coefficient in dim.terms:
        term = Dim.of(coefficient)
        for name in monomial:
            term = bounded(term * values.get(name, Dim.of(name)))
        total = bounded(total + term)
    return total


def shown(dims: Iterable[Dim]) -> str:
    """Dims as messages show them."""
    text = ", ".join(map(str, dims))
    return f"[{text}]" if text else "a scalar"


def unbound(declared: Iterable[Dim]) -> set[str]:
    """Names that no tensor of these dims binds: a name is bound where a dim is linear in it and
    every other name of the dim is bound already."""
    dims = list(declared)
    free = [set(dim.names) for dim in dims]
    holders: dict[str, list[int]] = {}
    for place, names in enumerate(free):
        for name in names:
            holders.setdefault(name, []).append(place)
    known: set[str] = set()
    todo = list(range(len(dims)))
    while todo:
        place = todo.pop()
        if len(free[place]) != 1 or not _linear(dims[place], name := min(free[place])):
            continue
        known.add(name)
        for holder in holders[name]:
            free[holder].discard(name)
            todo.append(holder)
    return holders.keys() - known


def _linear(dim: Dim, name: str) -> bool:
    return all(monomial.count(name) <= 1 for monomial, _ in dim.terms)


@dataclass(slots=True)
class Solver:
    """Equality of sizes: by name, or by inferring a name that only states carry.

    `inferable` names may become polynomials in the others; `solution` holds what was found. What is
    inferred while `doubt()` holds may be wrong itself: no mismatch with it is news.
    """

    inferable: frozenset[str] = frozenset()
    doubt: Callable[[], bool] = lambda: False
    solution: dict[str, Dim] = field(default_factory=dict)
    disputed: set[str] = field(default_factory=set)

    def resolve(self, dim: Dim) -> Dim:
        """The dim with everything that is known put in. Raises DimError where that is too large."""
        return put_in(dim, self.solution) if self.solution else dim

    def equal(self, a: Dim, b: Dim) -> bool:
        """Whether two sizes are the same, after inferring a name where that makes them so.

        Raises DimError where more is to be inferred than a rule can mean.
        """
        if a == b:
            return True
        difference = self.resolve(a) - self.resolve(b)
        if difference == ZERO:
            return True
        for monomial, coefficient in difference.terms:
            if len(monomial) != 1 or abs(coefficient) != 1 or monomial[0] not in self.inferable:
                continue
            name = monomial[0]
            rest = difference - Dim.of(name) * coefficient
            if name not in rest.names:
                self._solve(name, rest * -coefficient)
                return True
        return False

    def news(self, a: Iterable[Dim], b: Iterable[Dim]) -> bool:
        """Whether a mismatch says anything new: one wrong inference is reported once."""
        inferred = {n for dim in (*a, *b) for n in dim.names} & self.solution.keys()
        known = bool(inferred & self.disputed)
        self.disputed |= inferred
        return not known

    def _solve(self, name: str, value: Dim) -> None:
        if len(self.solution) >= MOST_INFERRED:
            raise DimError(f"more than {MOST_INFERRED} sizes are to be inferred")
        new = {known: put_in(dim, {name: value}) for known, dim in self.solution.items()}
        self.solution = new | {name: value}
        if self.doubt():
            self.disputed.add(name)
