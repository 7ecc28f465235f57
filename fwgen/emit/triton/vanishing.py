"""Where an expression is zero because what it reads is: padded lanes hold zeros."""

from __future__ import annotations

from collections.abc import Callable

from fwgen.ir.nodes import Apply, Const, Load, Scalar

_ZERO_AT_ZERO = {
    "tanh", "relu", "square", "abs", "sign", "sin", "silu", "gelu", "elu", "erf", "expm1", "sqrt",
    "log1p", "neg", "stop_gradient",
}  # fmt: skip
_TAME = _ZERO_AT_ZERO | {
    "add", "sub", "mul", "exp", "sigmoid", "softplus", "logsigmoid", "cos", "maximum", "minimum",
    "clamp", "select",
}  # fmt: skip


def _depends(expression: Scalar, axes: Callable[[Scalar], frozenset[object]], axis: object) -> bool:
    if isinstance(expression, Apply):
        return any(_depends(a, axes, axis) for a in expression.args)
    return axis in axes(expression)


def _tame(expression: Scalar) -> bool:
    """Whether the expression is finite wherever its loads are zero or ordinary."""
    if isinstance(expression, Apply):
        return expression.op in _TAME and all(map(_tame, expression.args))
    return True


def vanishing(
    expression: Scalar,
    zero: Callable[[Load], frozenset[object]],
    axes: Callable[[Scalar], frozenset[object]],
) -> frozenset[object] | None:
    """Axes in whose padding the expression is zero, given those of its loads; None: everywhere.

    `axes` tells on which axes a leaf depends. Padded lanes hold zeros, so a product with a padded
    factor vanishes there as long as its other factors are finite.
    """
    match expression:
        case Const(value):
            return None if value == 0 else frozenset()
        case Load():
            return zero(expression)
        case Apply("mul", args):
            found: set[object] = set()
            for n, argument in enumerate(args):
                own = vanishing(argument, zero, axes)
                if own is None:
                    return None
                others = [a for m, a in enumerate(args) if m != n]
                found |= {
                    v for v in own if all(_tame(a) or not _depends(a, axes, v) for a in others)
                }
            return frozenset(found)
        case Apply("div", (a, b)):
            own = vanishing(a, zero, axes)
            return own if own is None else frozenset(v for v in own if not _depends(b, axes, v))
        case Apply("add" | "sub" | "maximum" | "minimum", args):
            return _common([vanishing(a, zero, axes) for a in args])
        case Apply("select", (_, a, b)):
            return _common([vanishing(a, zero, axes), vanishing(b, zero, axes)])
        case Apply(op, (a,)) if op in _ZERO_AT_ZERO:
            return vanishing(a, zero, axes)
        case _:
            return frozenset()


def _common(sets: list[frozenset[object] | None]) -> frozenset[object] | None:
    found: frozenset[object] | None = None
    for own in sets:
        if own is not None:
            found = own if found is None else found & own
    return found
