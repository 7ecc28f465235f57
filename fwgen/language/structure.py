"""Parts and joins of arrays: subscripts, `concat`, `stack`, `roll`, `flatten`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fwgen.ir.dims import ONE, ZERO, Dim
from fwgen.ir.nodes import Index, Var
from fwgen.language import tree
from fwgen.language.dims import DimError, bounded
from fwgen.language.source import Span
from fwgen.language.values import Value

if TYPE_CHECKING:
    from fwgen.language.builder import Piece
    from fwgen.language.evaluate import Evaluator


def taken(ev: Evaluator, value: Value, axes: Sequence[Var], indices: list[Index]) -> Value:
    """Elements of a value at index expressions over `axes`.

    A value whose body holds an access that these cannot enter is stored first.
    """
    value = ev.shallow(value)
    try:
        body = value.at(indices)
    except ValueError:
        value = ev.builder.store(value, "u")
        body = value.at(indices)
    return Value(tuple(axes), body, kind=value.kind, depth=value.depth, size=value.size)


def subscript(ev: Evaluator, node: tree.Subscript, value: Value) -> Value | None:
    """`x[i]` drops an axis, `x[a:b]` keeps part of it; items count from the first axis."""
    if value.view is not None or len(node.items) > len(value.axes):
        ev.error(node.span, f"{ev.shape(value)} has no axis for this subscript")
        return None
    axes: list[Var] = []
    indices: list[Index] = []
    faulty = False
    for position, axis in enumerate(value.axes):
        item = node.items[position] if position < len(node.items) else None
        if item is None:
            axes.append(axis)
            indices.append(Index.of(axis))
            continue
        found = _slice(ev, item, axis) if isinstance(item, tree.Slice) else _at(ev, item, axis)
        if found is None:
            faulty = True
            continue
        index, kept = found
        indices.append(index)
        axes += [kept] if kept is not None else []
    return None if faulty else taken(ev, value, axes, indices)


def _at(ev: Evaluator, item: tree.Expression, axis: Var) -> tuple[Index, None] | None:
    place = ev.integer(item)
    if place is None:
        return None
    size = ev.builder.solver.resolve(axis.dim)
    if place.constant is not None and place.constant < 0:
        place = size + place
    place = ev.builder.solver.resolve(place)
    if not ev.builder.require(place, size - place - 1):
        ev.error(item.span, f"the index {place} is outside an axis of size {size}")
        return None
    return Index.of(place), None


def _slice(ev: Evaluator, item: tree.Slice, axis: Var) -> tuple[Index, Var] | None:
    size = ev.builder.solver.resolve(axis.dim)
    start = ZERO if item.start is None else ev.integer(item.start)
    stop = size if item.stop is None else ev.integer(item.stop)
    if start is None or stop is None:
        return None
    bounds = []
    for bound in (start, stop):
        value = bound.constant
        moved = size + bound if value is not None and value < 0 else bound
        bounds.append(ev.builder.solver.resolve(moved))
    start, stop = bounds
    if not ev.builder.require(start, stop - start - 1, size - stop):
        ev.error(item.span, f"{start}:{stop} is no part of an axis of size {size}")
        return None
    axis = ev.builder.axis(stop - start)
    return Index(((ONE, axis),), start), axis


def concat(ev: Evaluator, spans: Sequence[Span], parts: Sequence[Value]) -> Value | None:
    """Vectors and numbers one after the other."""
    offset = ZERO
    pieces: list[Piece] = []
    for span, part in zip(spans, parts, strict=True):
        if len(part.axes) > 1 or part.view is not None:
            message = f"`concat` joins vectors and scalars, not {ev.shape(part)}"
            ev.error(span, message, "`stack(a, b)` makes a matrix of vectors")
            return None
        if part.axes:
            pieces.append(((Index(((ONE, part.axes[0]),), offset),), part.body, (), None))
            offset = offset + ev.builder.solver.resolve(part.axes[0].dim)
        else:
            pieces.append(((Index.of(offset),), part.body, (), None))
            offset = offset + 1
    if len(parts) == 1 and parts[0].axes:
        return parts[0]
    if not _bounded(ev, spans[0], offset):
        return None
    return ev.builder.new("c", (offset,), pieces)


def _bounded(ev: Evaluator, span: Span, size: Dim) -> bool:
    try:
        bounded(size)
    except DimError as fault:
        ev.error(span, str(fault))
        return False
    return True


def stack(ev: Evaluator, spans: Sequence[Span], parts: Sequence[Value]) -> Value | None:
    """Equal shapes along a new first axis."""
    first = parts[0]
    pieces: list[Piece] = []
    for position, (span, part) in enumerate(zip(spans, parts, strict=True)):
        if part.view is not None or len(part.axes) != len(first.axes):
            ev.error(span, f"`stack` joins equal shapes, not {ev.shape(first)}, {ev.shape(part)}")
            return None
        for ours, theirs in zip(first.axes, part.axes, strict=True):
            if not ev.same(span, ours.dim, theirs.dim, "`stack` joins equal shapes"):
                return None
        index = (Index.of(position), *(Index.of(axis) for axis in part.axes))
        pieces.append((index, part.body, (), None))
    return ev.builder.new("c", (Dim.of(len(parts)), *first.dims), pieces)


def roll(ev: Evaluator, value: Value, shift: Dim) -> Value:
    """`out[i] = x[(i - shift) mod n]` along the last axis of a vector."""
    axis = ev.builder.axis(value.axes[-1].dim)
    index = Index(((ONE, axis),), -shift, axis.dim)
    return taken(ev, value, (axis,), [index])


def flatten(ev: Evaluator, span: Span, value: Value) -> Value | None:
    """A matrix (or a higher order) row by row as one vector."""
    factor = ONE
    terms: list[tuple[Dim, Var]] = []
    for axis in reversed(value.axes):
        terms.insert(0, (factor, axis))
        factor = factor * ev.builder.solver.resolve(axis.dim)
        if not _bounded(ev, span, factor):
            return None
    if len(value.axes) == 1:
        return value
    return ev.builder.new("f", (factor,), [((Index(tuple(terms)),), value.body, (), None)])
