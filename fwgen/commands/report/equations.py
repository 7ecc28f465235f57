"""Statements as equations to read: the contributions to one gradient make one equation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Apply, Array, Const, Index, Load, Reduction, Scalar, Statement, Var
from fwgen.ir.text import ADD, MUL, scalar_text
from fwgen.ir.walk import loads, substitute, substitute_index

LETTERS = "ijklmnopqrabcdefghsuvwxyz"
"""Names of indices in order of preference; `t` is the position of the token."""


@dataclass(frozen=True, slots=True)
class Summand:
    """A signed term of an equation: `reduce` over `over` of `body`, or `body` alone."""

    negative: bool
    body: Scalar
    over: tuple[Var, ...] = ()
    reduce: Reduction | None = None


@dataclass(frozen=True, slots=True)
class Equation:
    """`target[index] = terms`; with `adds` the terms are added to what the target holds.

    `ranges` are the indices whose range cannot be seen from the arrays that they run along.
    """

    target: Load
    terms: tuple[Summand, ...]
    adds: bool = False
    ranges: tuple[Var, ...] = ()


def equations(
    statements: Sequence[Statement], arrays: Sequence[Array], incoming: Collection[str] = ()
) -> list[Equation]:
    """One equation per statement, but one for all contributions to an array that each covers whole.

    It stands where the last contribution is, before which nothing reads the array. The arrays
    `incoming` hold something from the start, so what comes is added to it. No index is called like
    one of the `arrays`.
    """
    dims = {array.name: array.dims for array in arrays}
    statements = _apart_from(statements, dims)
    groups: dict[str, list[Statement]] = {}
    for statement in statements:
        groups.setdefault(statement.target, []).append(statement)
    found = []
    for statement in statements:
        group = groups[statement.target]
        whole = all(_whole(other, dims[statement.target]) for other in group)
        if not statement.accumulate or not whole:
            begun = statement.target in incoming or not _apart(group)
            adds = statement.accumulate and begun
            found.append(_equation(statement.target, [statement], adds, dims))
        elif statement is group[-1]:
            adds = statement.target in incoming
            found.append(_equation(statement.target, group, adds, dims))
    return found


def _equation(
    name: str, group: Sequence[Statement], adds: bool, dims: Mapping[str, tuple[Dim, ...]]
) -> Equation:
    target = Load(name, group[0].index)
    terms = tuple(_summand(statement, target.index, dims) for statement in group)
    own = dict.fromkeys((*group[0].free, *(var for term in terms for var in term.over)))
    accesses = [target, *(load for term in terms for load in loads(term.body))]
    seen = {
        index.variable
        for load in accesses
        for index, dim in zip(load.index, dims[load.array], strict=True)
        if index.variable is not None and index.variable.dim == dim
    }
    return Equation(target, terms, adds, tuple(var for var in own if var not in seen))


def _apart_from(statements: Sequence[Statement], names: Collection[str]) -> Sequence[Statement]:
    """The statements with other letters for their indices where one of them is an array's name."""
    used = dict.fromkeys(var.name for s in statements for var in (*s.free, *s.over))
    if not used.keys() & set(names):
        return statements
    free = iter([letter for letter in LETTERS if letter not in names])
    letters = {name: next(free, f"{name}_") for name in sorted(used)}
    return [_relettered(statement, letters) for statement in statements]


def _relettered(statement: Statement, letters: Mapping[str, str]) -> Statement:
    own = (*statement.free, *statement.over)
    new = {var: Var(letters[var.name], var.dim) for var in own}
    places = {var: Index.of(other) for var, other in new.items()}
    return replace(
        statement,
        index=tuple(substitute_index(index, places) for index in statement.index),
        body=substitute(statement.body, places),
        over=tuple(new[var] for var in statement.over),
    )


def _whole(statement: Statement, dims: tuple[Dim, ...]) -> bool:
    """Whether a statement covers its target, one variable per axis."""
    axes = [index.variable for index in statement.index]
    return all(var is not None and var.dim == dim for var, dim in zip(axes, dims, strict=True))


def _apart(group: Sequence[Statement]) -> bool:
    """Whether statements set different single elements, so that none adds to another's."""
    places = [statement.index for statement in group]
    fixed = all(not index.terms for place in places for index in place)
    return fixed and len(set(places)) == len(places)


def _summand(statement: Statement, index: tuple[Index, ...], taken: Collection[str]) -> Summand:
    """The statement's right side over the variables of `index`."""
    if statement.index == index:
        return _signed(statement.body, statement.over, statement.reduce)
    wanted = [i.variable for i in index if i.variable is not None]
    places = dict(zip(statement.free, map(Index.of, wanted), strict=True))
    names = {var.name for var in wanted} | set(taken)
    over = []
    for var in statement.over:
        name = next(n for n in (var.name, *LETTERS) if n not in names)
        names.add(name)
        over.append(Var(name, var.dim))
        places[var] = Index.of(over[-1])
    return _signed(substitute(statement.body, places), tuple(over), statement.reduce)


def _signed(body: Scalar, over: tuple[Var, ...], reduce: Reduction | None) -> Summand:
    """A minus leaves a product and the sum around it."""
    negative = False
    if reduce in (None, "sum"):
        match body:
            case Apply("neg", (inner,)):
                negative, body = True, inner
            case Apply("mul", (Apply("neg", (inner,)), *rest)):
                negative, body = True, Apply("mul", (inner, *rest))
            case Apply("mul", (Const(value), *rest)) if value < 0:
                kept = (Const(-value), *rest) if value != -1 else tuple(rest)
                negative, body = True, kept[0] if len(kept) == 1 else Apply("mul", kept)
    return Summand(negative, body, over, reduce)


def equation_parts(equation: Equation) -> list[str]:
    """The left side with the first term, every other term with its sign, ranges of indices."""
    parts = []
    for n, term in enumerate(equation.terms):
        sign = "- " if term.negative else "+ "
        parts.append((sign if n else "-" * term.negative) + _summand_text(term))
    parts[0] = f"{scalar_text(equation.target)} {'+=' if equation.adds else '='} {parts[0]}"
    return parts + [f"({var.name} < {var.dim})" for var in equation.ranges]


def equation_text(equation: Equation) -> str:
    """One line: `d_kf[j] = sum_i d_W_1[i, j] * u[i] - d_p * q[j]`."""
    return " ".join(equation_parts(equation))


def _summand_text(term: Summand) -> str:
    if term.reduce is None:
        return scalar_text(term.body, MUL if term.negative else ADD)
    names = [var.name for var in term.over]
    joined = ("" if all(len(name) == 1 for name in names) else ",").join(names)
    return f"{term.reduce}_{joined} {scalar_text(term.body, MUL)}"
