"""Sizes at a call: polynomials evaluated, and named dims bound from the shapes of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ArgumentError
from .signature import Poly


def evaluate(poly: Poly, sizes: Mapping[str, int]) -> int:
    """The value of a size; raises KeyError for a dim without one."""
    total = 0
    for names, factor in poly:
        for name in names:
            factor = factor * sizes[name]
        total = total + factor
    return total


def text(poly: Poly) -> str:
    """`2*K*nu + 1`."""
    out = ""
    for names, factor in poly:
        parts = list(names)
        if abs(factor) != 1 or not parts:
            parts.insert(0, str(abs(factor)))
        sign = "-" if factor < 0 else "+"
        lead = f" {sign} " if out else ("-" if factor < 0 else "")
        out += lead + "*".join(parts)
    return out or "0"


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a tensor at a call: the dim it stands for and the size that came."""

    tensor: str
    dim: Poly
    size: int


def _plain(poly: Poly) -> str | None:
    """The name of a dim that is just a name."""
    if len(poly) == 1 and poly[0][1] == 1 and len(poly[0][0]) == 1:
        return poly[0][0][0]
    return None


def _solve(axis: Axis, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """The one unbound name of an axis and its size, where it occurs linearly."""
    unbound = {name for names, _ in axis.dim for name in names if name not in sizes}
    if len(unbound) != 1:
        return None
    (name,) = unbound
    if any(names.count(name) > 1 for names, _ in axis.dim):
        return None
    others = tuple((names, factor) for names, factor in axis.dim if name not in names)
    slope = tuple(
        (tuple(n for n in names if n != name), factor)
        for names, factor in axis.dim
        if name in names
    )
    per, rest = evaluate(slope, sizes), axis.size - evaluate(others, sizes)
    if per == 0:
        return None
    if rest % per != 0:
        raise ArgumentError(
            f"{axis.tensor}: expected a size of the form {text(axis.dim)}, found {axis.size}"
        )
    return name, rest // per


def bind(
    axes: Sequence[Axis], free: Sequence[str], carried: str = "initial_state"
) -> tuple[dict[str, int], dict[str, str]]:
    """Sizes of all free dims and the tensor that each was bound from.

    Plain names bind first, in order; then names that occur linearly, where they divide exactly.
    `carried` is the argument that holds the states.
    Raises ArgumentError for a size below 1 and for a dim that no tensor determines.
    """
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}

    def settle(name: str, size: int, tensor: str) -> None:
        if size < 1:
            raise ArgumentError(
                f"{tensor}: expected {name} to be at least 1, found {name} = {size}"
            )
        sizes[name], origin[name] = size, tensor

    for axis in axes:
        name = _plain(axis.dim)
        if name is not None and name not in sizes:
            settle(name, axis.size, axis.tensor)
    progress = True
    while progress:
        progress = False
        for axis in axes:
            found = _solve(axis, sizes)
            if found is not None:
                settle(*found, axis.tensor)
                progress = True
    for name in free:
        if name not in sizes:
            raise ArgumentError(
                f"{name}: the size of this dim follows from no tensor of the call; "
                f"pass {carried} with all states"
            )
    return sizes, origin
