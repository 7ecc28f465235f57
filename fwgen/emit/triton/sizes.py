"""Renames dims of a rule that the generated code would mistake for its own names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fwgen.emit.triton.names import Names
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import (
    Apply,
    Array,
    Backward,
    Index,
    IndexValue,
    Load,
    Scalar,
    Size,
    Statement,
    Step,
    Var,
)

_HOST = ("blocks", "heads", "x", "y", "g", "part", "tiled", "summed", "zero", "lead")
"""What the launching functions call their own; no array has a name there."""


def size_names(step: Step, backward: Backward) -> dict[str, str]:
    """The named dims of a rule in order of appearance, each with its name in generated code."""
    found: dict[str, None] = {}
    for array in step.arrays + backward.arrays:
        for dim in array.dims:
            found |= dict.fromkeys(sorted(dim.names))
    names = Names(_HOST)
    return {name: names.new(name) for name in found}


class _Renaming:
    """Dims replaced in every node."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.values = {old: Dim.of(new) for old, new in names.items()}

    def dim(self, dim: Dim) -> Dim:
        return dim.substitute(self.values)

    def index(self, index: Index) -> Index:
        terms = tuple((self.dim(c), self.var(v)) for c, v in index.terms)
        modulo = None if index.modulo is None else self.dim(index.modulo)
        return Index(terms, self.dim(index.offset), modulo)

    def var(self, var: Var) -> Var:
        return Var(var.name, self.dim(var.dim))

    def scalar(self, node: Scalar) -> Scalar:
        match node:
            case Size(dim):
                return Size(self.dim(dim))
            case IndexValue(index):
                return IndexValue(self.index(index))
            case Load(array, index):
                return Load(array, tuple(map(self.index, index)))
            case Apply(op, args):
                return Apply(op, tuple(map(self.scalar, args)))
            case _:
                return node

    def array(self, array: Array) -> Array:
        return replace(array, dims=tuple(map(self.dim, array.dims)))

    def statement(self, s: Statement) -> Statement:
        over = tuple(map(self.var, s.over))
        return replace(
            s, index=tuple(map(self.index, s.index)), body=self.scalar(s.body), over=over
        )


def with_sizes(step: Step, backward: Backward, names: Mapping[str, str]) -> tuple[Step, Backward]:
    """The same rule with its dims renamed."""
    if all(old == new for old, new in names.items()):
        return step, backward
    change = _Renaming(names)
    step = replace(
        step,
        arrays=tuple(map(change.array, step.arrays)),
        statements=tuple(map(change.statement, step.statements)),
        dims=tuple((name, change.dim(dim)) for name, dim in step.dims),
    )
    return step, replace(
        backward,
        forward=step,
        arrays=tuple(map(change.array, backward.arrays)),
        statements=tuple(map(change.statement, backward.statements)),
    )
