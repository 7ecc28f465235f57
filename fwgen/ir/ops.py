"""The scalar operations of Step IR. One row per operation: how many arguments, and of which kind.

`arity` None means two or more. `kind`: `real` (floating), `bool` (a condition), `int` (both
arguments and result are integers: token positions and index values), `number` (integer when all
arguments are integers, else floating).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["real", "bool", "int", "number"]


@dataclass(frozen=True, slots=True)
class Op:
    """One scalar operation."""

    arity: int | None
    kind: Kind


OPS: dict[str, Op] = {
    "add": Op(None, "number"),
    "mul": Op(None, "number"),
    "sub": Op(2, "number"),
    "neg": Op(1, "number"),
    "div": Op(2, "real"),
    "pow": Op(2, "real"),
    "mod": Op(2, "number"),
    **{
        name: Op(1, "real")
        for name in [
            "exp",
            "log",
            "log1p",
            "expm1",
            "sqrt",
            "rsqrt",
            "abs",
            "sign",
            "sin",
            "cos",
            "tanh",
            "sigmoid",
            "logsigmoid",
            "softplus",
            "relu",
            "elu",
            "silu",
            "gelu",
            "square",
            "erf",
            "stop_gradient",
        ]
    },
    "maximum": Op(2, "real"),
    "minimum": Op(2, "real"),
    "clamp": Op(3, "real"),
    "select": Op(3, "number"),
    **{name: Op(2, "bool") for name in ["lt", "le", "gt", "ge", "eq", "ne", "and", "or"]},
    "not": Op(1, "bool"),
}
