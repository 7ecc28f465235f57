"""Narrow arrays on demand: the statements of a step under construction, equal ones made once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fwgen.algebra.canonical import key_of
from fwgen.ir.nodes import Array, Index, Load, Reduction, Scalar, Statement, Var


class Sink:
    """Collects statements and the local arrays that they define; names are unique."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        self.arrays = {array.name: array for array in arrays}
        self.statements: list[Statement] = []
        self.generated: set[str] = set()
        self._known: dict[object, str] = {}
        self._numbers: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """An unused array name that starts with `stem`."""
        number = self._numbers.get(stem, 0)
        name = f"{stem}_{number}" if number else stem
        while name in self.arrays:
            number += 1
            name = f"{stem}_{number}"
        self._numbers[stem] = number
        return name

    def add(self, statement: Statement) -> None:
        """Append a statement; if it defines a whole array, later requests for it find it."""
        self.statements.append(statement)
        axes = [index.variable for index in statement.index]
        if all(axis is not None for axis in axes):
            key = self._key(tuple(a for a in axes if a is not None), statement)
            self._known.setdefault(key, statement.target)

    @staticmethod
    def _key(axes: tuple[Var, ...], statement: Statement) -> object:
        over = statement.over
        return (statement.reduce, len(over), key_of(statement.body, (*axes, *over)))

    def define(
        self,
        stem: str,
        axes: Sequence[Var],
        body: Scalar,
        line: int,
        over: tuple[Var, ...] = (),
        reduce: Reduction | None = None,
    ) -> Load:
        """An element of the array over `axes` that holds `body`, made unless it exists already."""
        index = tuple(Index.of(axis) for axis in axes)
        if not over and isinstance(body, Load) and body.index == index:
            return body
        statement = Statement(stem, index, body, over, reduce, line=line)
        known = self._known.get(self._key(tuple(axes), statement))
        if known is not None:
            return Load(known, index)
        name = self.fresh(stem)
        self.arrays[name] = Array(name, tuple(axis.dim for axis in axes), "local")
        self.generated.add(name)
        self.add(Statement(name, index, body, over, reduce, line=line))
        return Load(name, index)
