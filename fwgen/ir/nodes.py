"""Step IR: one token of a rule as scalar formulas over indexed arrays.

Every value has typed index variables (the type is a dim), and a statement reads

    target[i, j] = sum over l of body(a[i, l], b[l], c[j], ...)

where `body` is a *scalar* expression over element accesses. All matrix calculus is thereby scalar
calculus plus sums over names. Arrays are in single-assignment form: `W = exp(g) * W` makes a new
array `W_1`; a later token's `W` is the last version of this one's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fwgen.ir.dims import ONE, ZERO, Dim


@dataclass(frozen=True, slots=True)
class Var:
    """An index variable that runs from 0 to `dim` - 1; unique by name within a statement."""

    name: str
    dim: Dim


@dataclass(frozen=True, slots=True)
class Index:
    """(sum of coefficient * variable + offset), then modulo a dim where `modulo` is given.

    The modulo is the mathematical one (never negative). A plain variable is `Index.of(var)`.
    """

    terms: tuple[tuple[Dim, Var], ...] = ()
    offset: Dim = ZERO
    modulo: Dim | None = None

    @staticmethod
    def of(value: Var | Dim | int) -> Index:
        """The index that is one variable, or one constant position."""
        if isinstance(value, Var):
            return Index(((ONE, value),))
        return Index(offset=Dim.of(value))

    @property
    def variable(self) -> Var | None:
        """The variable of a plain index, else None."""
        if self.modulo is not None or self.offset.terms or len(self.terms) != 1:
            return None
        factor, var = self.terms[0]
        return var if factor == ONE else None


@dataclass(frozen=True, slots=True)
class Const:
    """A number; an `int` takes part in integer arithmetic (`t % 3`), a `float` does not."""

    value: float | int


@dataclass(frozen=True, slots=True)
class Size:
    """The value of a dim as a number."""

    dim: Dim


@dataclass(frozen=True, slots=True)
class Position:
    """`t`: the 0-based index of the token, an integer."""


@dataclass(frozen=True, slots=True)
class IndexValue:
    """The value of an index expression, an integer (`eye` compares two of them)."""

    index: Index


@dataclass(frozen=True, slots=True)
class Load:
    """An element of an array; one index per axis."""

    array: str
    index: tuple[Index, ...] = ()


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar operation of `fwgen.ir.ops.OPS` on scalar expressions."""

    op: str
    args: tuple[Scalar, ...]


Scalar = Const | Size | Position | IndexValue | Load | Apply

Role = Literal["input", "param", "buffer", "state", "local", "seed", "earlier"]


@dataclass(frozen=True, slots=True)
class Array:
    """A named array of one token and one head.

    `role`: `input` (one per token), `param` and `buffer` (one per head), `state` (the value before
    the token), `local` (assigned by statements), `seed` (an adjoint that comes from outside),
    `earlier` (in schedules: the value of `of` at the token before).
    `of` names what the user called it (states have versions; adjoints belong to something).
    `floating` is False for an input that only occurs in conditions and may hold integers.
    """

    name: str
    dims: tuple[Dim, ...]
    role: Role
    of: str = ""
    floating: bool = True


Reduction = Literal["sum", "max", "min"]


@dataclass(frozen=True, slots=True)
class Statement:
    """`target[index] = reduce over `over` of body`, for all values of the other variables.

    The variables are those of `index` and `over`, all distinct; every variable of `index` occurs
    in exactly one of its entries. Several statements may define disjoint regions of one target
    (`concat`). With `accumulate` the result is added to the target, which starts at zero.
    `line` is the line of the rule file that it came from (0: none).
    """

    target: str
    index: tuple[Index, ...]
    body: Scalar
    over: tuple[Var, ...] = ()
    reduce: Reduction | None = None
    accumulate: bool = False
    line: int = 0

    @property
    def free(self) -> tuple[Var, ...]:
        """The variables of the target, in order of its axes."""
        return tuple(var for index in self.index for _, var in index.terms)


@dataclass(frozen=True, slots=True)
class State:
    """A carried quantity: the arrays that hold it before and after the token, and its start value.

    `init` is a number, or None for a learned start (a param of the state's name).
    """

    name: str
    old: str
    new: str
    init: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One token: arrays (by name), statements in order, states, and the output's array."""

    name: str
    arrays: tuple[Array, ...]
    statements: tuple[Statement, ...]
    states: tuple[State, ...]
    output: str
    dims: tuple[tuple[str, Dim], ...] = field(default=())
    """Derived dims, such as ("F", 2*K*nu); the polynomials of `arrays` are already free of them."""
    requires: tuple[tuple[Dim, int], ...] = field(default=())
    """Quantities that a call's sizes must make at least 0, each with the line of the rule file
    that needs it: a slice `x[0:4]` of `x: K` requires `K - 4`."""

    def array(self, name: str) -> Array:
        """The array of that name; raises KeyError."""
        for array in self.arrays:
            if array.name == name:
                return array
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Backward:
    """The adjoint of one token.

    `statements` use the arrays of `forward` (its statements are to be run first, or their results
    restored) and the adjoint arrays in `arrays`. `seeds` maps what comes in: the output's array and
    each state's *new* array to the array of role `seed` that holds its adjoint. `results` maps each
    floating input, param and *old* state array to the array that holds its adjoint, or to None
    where the adjoint is zero. An adjoint array is zero where nothing was accumulated.
    """

    forward: Step
    arrays: tuple[Array, ...]
    statements: tuple[Statement, ...]
    seeds: tuple[tuple[str, str], ...]
    results: tuple[tuple[str, str | None], ...]
