"""Reductions along axes, and the normalisations built from them."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from fwgen.ir.nodes import Const, Scalar, Size, Var
from fwgen.language import tree
from fwgen.language.source import Span
from fwgen.language.values import Value, apply, is_plain

if TYPE_CHECKING:
    from fwgen.language.evaluate import Evaluator

Axes = tuple[tuple[Var, ...], tuple[Var, ...]]


def axes_of(
    ev: Evaluator, span: Span, name: str, value: Value, axis: tree.Expression | None
) -> Axes | None:
    """The axes that stay and those that go; all go where no axis is named."""
    if value.view is not None:
        ev.error(span, f"a view alone has no `{name}`", "use the vector itself")
        return None
    if axis is None:
        return (), value.axes
    place = ev.integer(axis)
    if place is None:
        return None
    number, order = place.constant, len(value.axes)
    if number is None or not -order <= number < order:
        ev.error(axis.span, f"{ev.shape(value)} has no axis {place}")
        return None
    gone = value.axes[number]
    return tuple(var for var in value.axes if var is not gone), (gone,)


def reduction(
    ev: Evaluator, span: Span, name: str, value: Value | None, axis: tree.Expression | None
) -> Value | None:
    """`sum`, `mean`, `max`, `min`, `norm`."""
    if value is None:
        return None
    if name in ("max", "min") and value.view is None and not is_plain(value):
        value = ev.builder.store(value, "u")  # the adjoint compares the result with its elements
    axes = axes_of(ev, span, name, value, axis)
    if axes is None:
        return None
    keep, over = axes
    if not over and name != "norm":
        return value
    match name:
        case "sum":
            return ev.builder.reduce(value.body, keep, over, "sum", "s")
        case "mean":
            return Value(keep, mean(ev, value.body, keep, over))
        case "max" | "min":
            return ev.builder.reduce(value.body, keep, over, "max" if name == "max" else "min", "m")
        case _:
            square = apply("square", value.body)
            n = ev.builder.reduce(square, keep, over, "sum", "n")
            n = n if is_plain(n) else ev.builder.store(n, "n")
            positive = apply("gt", n.body, Const(0))
            return Value(n.axes, apply("select", positive, apply("sqrt", n.body), Const(0)))


def mean(ev: Evaluator, body: Scalar, keep: tuple[Var, ...], over: tuple[Var, ...]) -> Scalar:
    """The mean of a body over variables."""
    total = ev.builder.reduce(body, keep, over, "sum", "s")
    count = reduce(lambda a, b: a * b, (var.dim for var in over))
    known = count.constant
    return apply("div", total.over(keep), Size(count) if known is None else Const(known))


def normalised(
    ev: Evaluator,
    span: Span,
    name: str,
    value: Value,
    eps: Value,
    axis: tree.Expression | None,
) -> Value | None:
    """`softmax`, `l2norm`, `sum_normalize`, `layernorm`, `rmsnorm`, without affine."""
    if eps.constant is not None and eps.constant < 0:
        ev.error(span, f"the eps of `{name}` is at least 0, not {eps.constant}")
        return None
    if axes_of(ev, span, name, value, axis) is None:
        return None
    if len(value.axes) != 1 and axis is None:
        hint = "write `axis=-1`" if value.axes else None
        ev.error(span, f"`{name}` of {ev.shape(value)} needs an axis", hint)
        return None
    x = value if is_plain(value) else ev.builder.store(value, "u")
    axes = axes_of(ev, span, name, x, axis)
    assert axes is not None
    return Value(x.axes, NORMALISED[name](ev, x, eps.body, axes), depth=4)


def _softmax(ev: Evaluator, x: Value, eps: Scalar, axes: Axes) -> Scalar:
    keep, over = axes
    top = ev.builder.reduce(x.body, keep, over, "max", "m").over(keep)
    shifted = apply("sub", x.body, apply("stop_gradient", top))
    e = ev.builder.store(Value(x.axes, apply("exp", shifted)), "e").over(x.axes)
    return apply("div", e, ev.builder.reduce(e, keep, over, "sum", "s").over(keep))


def _l2norm(ev: Evaluator, x: Value, eps: Scalar, axes: Axes) -> Scalar:
    keep, over = axes
    n = ev.builder.reduce(apply("square", x.body), keep, over, "sum", "n").over(keep)
    return apply("mul", x.body, apply("rsqrt", apply("add", n, eps)))


def _sum_normalize(ev: Evaluator, x: Value, eps: Scalar, axes: Axes) -> Scalar:
    keep, over = axes
    s = ev.builder.reduce(x.body, keep, over, "sum", "s").over(keep)
    return apply("div", x.body, s if eps == Const(0) else apply("add", s, eps))


def _layernorm(ev: Evaluator, x: Value, eps: Scalar, axes: Axes) -> Scalar:
    keep, over = axes
    centre = apply("sub", x.body, mean(ev, x.body, keep, over))
    c = ev.builder.store(Value(x.axes, centre), "c").over(x.axes)
    spread = mean(ev, apply("square", c), keep, over)
    return apply("mul", c, apply("rsqrt", apply("add", spread, eps)))


def _rmsnorm(ev: Evaluator, x: Value, eps: Scalar, axes: Axes) -> Scalar:
    keep, over = axes
    spread = mean(ev, apply("square", x.body), keep, over)
    return apply("mul", x.body, apply("rsqrt", apply("add", spread, eps)))


NORMALISED = {
    "softmax": _softmax,
    "l2norm": _l2norm,
    "sum_normalize": _sum_normalize,
    "layernorm": _layernorm,
    "rmsnorm": _rmsnorm,
}
