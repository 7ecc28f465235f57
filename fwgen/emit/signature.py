"""Writes down what the runtime must know of a rule: Step -> Signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Array, Backward, IndexValue, Load, Position, Size, Statement, Step
from fwgen.ir.walk import loads, scalars
from fwgen.runtime.signature import Poly, Saved, Signature, StateSpec, TensorSpec

if TYPE_CHECKING:
    from fwgen.algebra.normal import Normal  # its module imports sympy


def signature_of(
    digest: str,
    step: Step,
    normal: Normal,
    backwards: Sequence[Backward],
    saved: Sequence[Saved],
) -> Signature:
    """The signature of a step; `digest` is the rule's hash.

    `saved` is what the kernels keep for the backward pass. Tensors whose adjoint is zero everywhere
    are recorded, so that kernels need not write those zeros. `backwards` are derived from forms of
    the step; where one of them finds a zero, another may have terms that cancel.
    """
    results = [(n, adjoint) for b in backwards for n, adjoint in b.results]
    owners = {state.old: state.name for state in step.states}
    constant = tuple(dict.fromkeys(owners.get(n, n) for n, found in results if found is None))
    return Signature(
        name=step.name,
        hash=digest,
        inputs=_specs(step, "input"),
        params=_specs(step, "param"),
        buffers=_specs(step, "buffer"),
        states=tuple(
            StateSpec(state.name, _dims(step.array(state.old)), state.init) for state in step.states
        ),
        output=TensorSpec("y", _dims(step.array(step.output))),
        free_dims=free_dims(step),
        dims=tuple((name, dim.terms) for name, dim in step.dims),
        forms=("recurrent",),
        chunk_reason=normal.chunk_reason,
        uses_position=uses_position(step),
        saved=tuple(saved),
        constant=constant,
        room=tuple(size.terms for size in room(step)),
        parallel_dim=parallel_dim(step),
    )


def parallel_dim(step: Step) -> str | None:
    """A dim along which every formula works element by element, as the values of most rules.

    It is the first axis of the output and of every state, so that its parts can be heads of their
    own: nothing sums over it, reads its size or a position in it, or has it in another place.
    """
    arrays = {array.name: array for array in step.arrays}
    first = [d for d in arrays[step.output].dims[:1] if [d] == [Dim.of(n) for n in d.names]]
    for dim in first:
        (name,) = dim.names
        named = {
            a.name: [n for n, d in enumerate(a.dims) if name in d.names] for a in arrays.values()
        }
        only_first = all(
            places in ([], [0]) and (not places or arrays[array].dims[0] == dim)
            for array, places in named.items()
        )
        held = [named[step.output], *(named[s.old] for s in step.states)]
        sizes = [*(d for _, d in step.dims), *(d for d, _ in step.requires)]
        if (
            only_first
            and all(held)
            and all(name not in size.names for size in sizes)
            and all(_element_by_element(s, name, named) for s in step.statements)
        ):
            return name
    return None


def _element_by_element(statement: Statement, name: str, named: Mapping[str, list[int]]) -> bool:
    """Whether one variable runs along the dim, in the first place of whatever has it."""
    var = statement.index[0].variable if named[statement.target] else None
    whole = var is not None and var.dim == Dim.of(name) and var not in statement.over
    if named[statement.target] and not whole:
        return False
    nodes = list(scalars(statement.body))
    places = [(statement.target, statement.index)]
    places += [(n.array, n.index) for n in nodes if isinstance(n, Load)]
    for array, index in places:
        if named[array] and (not whole or index[0].variable != var):
            return False
        if any(v == var for entry in index[len(named[array]) :] for _, v in entry.terms):
            return False
    others = [n.dim for n in nodes if isinstance(n, Size)]
    others += [v.dim for n in nodes if isinstance(n, IndexValue) for _, v in n.index.terms]
    others += [v.dim for v in statement.over]
    return all(name not in dim.names for dim in others)


def room(step: Step) -> tuple[Dim, ...]:
    """Sizes that must not be negative for every access to stay inside its array.

    Only those that some size of at least one could make negative.
    """
    arrays = {array.name: array for array in step.arrays}
    found = {dim: None for array in step.arrays for dim in array.dims}
    for statement in step.statements:
        places = [(statement.target, statement.index)]
        places += [(load.array, load.index) for load in loads(statement.body)]
        for name, indices in places:
            for index, dim in zip(indices, arrays[name].dims, strict=True):
                if index.modulo is None:
                    last = index.offset
                    for factor, var in index.terms:
                        last = last + factor * (var.dim - 1)
                    found[dim - 1 - last] = None
    return tuple(size for size in found if not _never_negative(size))


def _never_negative(size: Dim) -> bool:
    """Whether a size is at least 0 for all named dims of at least 1, by its coefficients."""
    shifted = size.substitute({name: Dim.of(name) + 1 for name in size.names})
    return all(factor >= 0 for _, factor in shifted.terms)


def free_dims(step: Step) -> tuple[str, ...]:
    """The named dims of a step, in order of first appearance: the order kernels get sizes in."""
    order = ("input", "param", "buffer", "state", "local", "seed")
    found: dict[str, None] = {}
    for role in order:
        for array in step.arrays:
            if array.role == role:
                for dim in array.dims:
                    found.update(dict.fromkeys(sorted(dim.names)))
    return tuple(found)


def uses_position(step: Step) -> bool:
    """Whether a formula reads `t`."""
    nodes: Iterable[object] = (n for s in step.statements for n in scalars(s.body))
    return any(isinstance(node, Position) for node in nodes)


def _specs(step: Step, role: str) -> tuple[TensorSpec, ...]:
    arrays = [array for array in step.arrays if array.role == role]
    return tuple(TensorSpec(array.name, _dims(array), array.floating) for array in arrays)


def _dims(array: Array) -> tuple[Poly, ...]:
    dims: tuple[Dim, ...] = array.dims
    return tuple(dim.terms for dim in dims)
