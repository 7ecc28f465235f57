"""Statements and arrays of a step while it is being lowered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import (
    Apply,
    Array,
    Const,
    Index,
    IndexValue,
    Load,
    Reduction,
    Role,
    Scalar,
    Size,
    Statement,
    Var,
)
from fwgen.ir.walk import rename, rewrite, substitute, substitute_index
from fwgen.language.dims import Solver
from fwgen.language.values import Value, apply, is_load, occurring, product, split

LETTERS = "ijklmnopabcdefgh"
Piece = tuple[tuple[Index, ...], Scalar, tuple[Var, ...], Reduction | None]


@dataclass(slots=True)
class Builder:
    """Collects statements in single-assignment form.

    `reserved` are the user's names, which no temporary may take. Temporaries that compute the same
    are made once.
    """

    reserved: set[str]
    solver: Solver
    arrays: dict[str, Array] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    requirements: dict[Dim, int] = field(default_factory=dict)
    line: int = 0
    _axes: int = 0
    _made: dict[tuple[Piece, ...], str] = field(default_factory=dict)
    _keys: dict[str, tuple[Piece, ...]] = field(default_factory=dict)
    _born: dict[str, int] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def axis(self, dim: Dim) -> Var:
        """A new index variable."""
        self._axes += 1
        return Var(f"~{self._axes}", dim)

    def declare(self, name: str, dims: tuple[Dim, ...], role: Role) -> Value:
        """An array that is given, as a value."""
        self.arrays[name] = Array(name, dims, role, name)
        return self.whole(name)

    def whole(self, name: str) -> Value:
        """A whole array as a value."""
        axes = tuple(self.axis(dim) for dim in self.arrays[name].dims)
        return Value(axes, Load(name, tuple(Index.of(axis) for axis in axes)))

    def of_dims(self, value: Value, dims: tuple[Dim, ...]) -> Value:
        """The value with the same sizes as they are declared: messages about it then name these."""
        if value.dims == dims:
            return value
        axes = tuple(self.axis(dim) for dim in dims)
        return replace(value, axes=axes, body=value.over(axes))

    def unique(self, hint: str) -> str:
        """A name that nothing else has, as near to `hint` as possible."""
        name, count = hint, self._counts.get(hint, 0)
        while name in self.reserved or name in self.arrays:
            count += 1
            name = f"{hint}_{count}"
        self._counts[hint] = count
        return name

    def version(self, user: str) -> str:
        """The name of the next array that a user's name stands for."""
        return user if user not in self.arrays else self.unique(user)

    def require(self, *quantities: Dim) -> bool:
        """Whether quantities can be at least 0; what depends on sizes is noted for the call."""
        for quantity in quantities:
            dim = self.solver.resolve(quantity)
            least = sum(coefficient for _, coefficient in dim.terms)
            if all(c >= 0 for _, c in dim.terms if _) and least >= 0:
                continue  # sizes are at least 1
            if all(c <= 0 for _, c in dim.terms) and dim.terms:
                return False
            self.requirements.setdefault(dim, self.line)
        return True

    def new(self, hint: str, dims: tuple[Dim, ...], pieces: Sequence[Piece]) -> Value:
        """A temporary defined by statements that write disjoint regions of it."""
        key = tuple(_canonical(piece) for piece in pieces)
        name = self._made.get(key)
        if name is None:
            name = self.unique(hint)
            self._made[key], self._keys[name] = name, key
            self._write(name, name, dims, key)
        return self.whole(name)

    def _write(self, name: str, of: str, dims: tuple[Dim, ...], pieces: Iterable[Piece]) -> None:
        self.arrays[name] = Array(name, dims, "local", of)
        self._born[name] = len(self.statements)
        for index, body, over, reduce in pieces:
            self.statements.append(Statement(name, index, body, over, reduce, line=self.line))

    def store(self, value: Value, hint: str) -> Value:
        """The value as a temporary of its own, its view kept; an array stays what it is."""
        if is_load(value):
            return value
        index = tuple(Index.of(axis) for axis in value.axes)
        stored = self.new(hint, value.dims, [(index, value.body, (), None)])
        return replace(stored, view=value.view)

    def assign(self, user: str, value: Value, mark: int) -> Value:
        """A new version of a user's name. A temporary made since `mark` just gets the name."""
        name = self.version(user)
        match value.body:
            case Load(made, _) if is_load(value) and self._fresh(made, mark):
                self._rename(made, name, user, mark)
            case _:
                index = tuple(Index.of(axis) for axis in value.axes)
                piece = _canonical((index, value.body, (), None))
                self._write(name, user, value.dims, [piece])
        return self.whole(name)

    def _fresh(self, name: str, mark: int) -> bool:
        return self._born.get(name, -1) >= mark

    def _rename(self, old: str, new: str, user: str, mark: int) -> None:
        for position in range(mark, len(self.statements)):
            self.statements[position] = rename(self.statements[position], {old: new})
        array = self.arrays.pop(old)
        self.arrays[new] = replace(array, name=new, of=user)
        self._born[new] = self._born.pop(old)
        if key := self._keys.pop(old, None):
            self._made[key], self._keys[new] = new, key

    def reduce(
        self,
        body: Scalar,
        keep: Sequence[Var],
        over: Sequence[Var],
        reduction: Reduction,
        hint: str,
    ) -> Value:
        """`reduction` of a body over variables. What does not depend on them leaves a sum."""
        if not over:
            return Value(tuple(keep), body)
        if reduction != "sum":
            index = tuple(Index.of(axis) for axis in keep)
            dims = tuple(axis.dim for axis in keep)
            stored = self.new(hint, dims, [(index, body, tuple(over), reduction)])
            return Value(tuple(keep), stored.over(keep))
        parts = split(body, frozenset(over))
        inside = product(parts.inside)
        used = occurring(inside)
        outside = list(parts.outside)
        outside += [Size(var.dim) for var in over if var not in used]
        if used:
            axes = [axis for axis in keep if axis in used]
            bound = tuple(var for var in over if var in used)
            index = tuple(Index.of(axis) for axis in axes)
            dims = tuple(axis.dim for axis in axes)
            stored = self.new(hint, dims, [(index, inside, bound, "sum")])
            outside.append(stored.over(axes))
        signs = outside.count(Const(-1))
        result = product([factor for factor in outside if factor != Const(-1)])
        result = apply("neg", result) if signs % 2 else result
        for below in parts.below:
            result = apply("div", result, below)
        return Value(tuple(keep), result)

    def finish(self) -> tuple[tuple[Array, ...], tuple[Statement, ...]]:
        """Arrays and statements with every inferred size put in."""
        arrays = tuple(
            replace(array, dims=tuple(map(self.solver.resolve, array.dims)))
            for array in self.arrays.values()
        )
        return arrays, tuple(_resolved(s, self.solver) for s in self.statements)


def _canonical(piece: Piece) -> Piece:
    """A statement's content with variables named by their order: target first, then summed."""
    index, body, over, reduce = piece
    axes = [var for entry in index for _, var in entry.terms] + list(over)
    names = {
        var: Index.of(Var(LETTERS[n] if n < len(LETTERS) else f"i{n}", var.dim))
        for n, var in enumerate(axes)
    }
    plain = {var: entry.terms[0][1] for var, entry in names.items()}
    return (
        tuple(substitute_index(entry, names) for entry in index),
        substitute(body, names),
        tuple(plain[var] for var in over),
        reduce,
    )


def _resolved(statement: Statement, solver: Solver) -> Statement:
    def var(old: Var) -> Var:
        return Var(old.name, solver.resolve(old.dim))

    def index(old: Index) -> Index:
        terms = tuple((solver.resolve(factor), var(name)) for factor, name in old.terms)
        modulo = None if old.modulo is None else solver.resolve(old.modulo)
        return Index(terms, solver.resolve(old.offset), modulo)

    def change(node: Scalar) -> Scalar:
        match node:
            case Load(array, indices):
                return Load(array, tuple(map(index, indices)))
            case IndexValue(entry):
                return IndexValue(index(entry))
            case Size(dim):
                size = solver.resolve(dim)
                return Size(size) if size.constant is None else Const(size.constant)
            case _:
                return node

    return replace(
        statement,
        index=tuple(map(index, statement.index)),
        body=rewrite(statement.body, change),
        over=tuple(map(var, statement.over)),
    )


def depth(body: Scalar) -> int:
    """How deep a scalar expression nests."""
    deepest, todo = 0, [(body, 1)]
    while todo:
        node, level = todo.pop()
        deepest = max(deepest, level)
        if isinstance(node, Apply):
            todo += [(arg, level + 1) for arg in node.args]
    return deepest
