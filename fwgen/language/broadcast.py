"""Element-wise operations on values: which shapes combine, and what a fault looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Apply, Const, Scalar, Var
from fwgen.ir.ops import OPS
from fwgen.language.builder import Builder
from fwgen.language.dims import shown
from fwgen.language.source import Report, Span
from fwgen.language.values import Value, View, apply

DEEPEST_BODY = 60
LONGEST_BODY = 1000


@dataclass(slots=True, kw_only=True)
class Broadcaster:
    """Combines values, adding statements to a builder and faults to a report."""

    builder: Builder
    report: Report
    calls: tuple[str, ...] = ()
    """Feature maps being evaluated, outermost first."""
    outside: Span | None = None
    """Where the rule calls the shipped map being evaluated: faults are placed there."""

    def error(self, span: Span, message: str, hint: str | None = None) -> None:
        """Report a fault; inside a shipped map it is placed at the call."""
        if self.outside is not None:
            message = f"in the feature map `{self.calls[-1]}`: {message}"
        self.report.error(self.outside or span, message, hint)

    def combine(self, op: str, span: Span, *operands: Value | None) -> Value | None:
        """An element-wise operation on operands that broadcast."""
        values = [self.shallow(v) for v in operands if v is not None]
        if len(values) < len(operands):
            return None
        aligned = self.align(span, values)
        if aligned is None:
            return None
        axes, view, bodies = aligned
        body = apply(op, *bodies)
        integral = op in ("add", "sub", "mul", "neg", "mod")
        whole = integral and all(v.kind == "int" for v in values)
        if isinstance(body, Const):
            return Value(axes, body, view, "int" if whole else "real")
        deep, size = 1 + max(v.depth for v in values), 1 + sum(v.size for v in values)
        # Integers stand as they are wherever they are read, also as locals: see `store` of a rule.
        if whole and max(deep, size // 2) >= DEEPEST_BODY:
            self.error(span, "the integer expression grows too large")
            return None
        return Value(axes, body, view, "int" if whole else "real", deep, size)

    def shallow(self, value: Value) -> Value:
        """The value, stored when its body nests too deep or has grown too long."""
        if value.depth < DEEPEST_BODY and value.size < LONGEST_BODY:
            return value
        if isinstance(value.body, Apply) and OPS[value.body.op].kind == "bool":
            number = replace(value, body=apply("select", value.body, Const(1), Const(0)))
            stored = self.builder.store(number, "u")
            return replace(stored, body=apply("ne", stored.body, Const(0)))
        return self.builder.store(value, "u")

    def align(
        self, span: Span, values: Sequence[Value]
    ) -> tuple[tuple[Var, ...], View | None, list[Scalar]] | None:
        """Common axes of operands, and their bodies over these; reports what does not fit."""
        wide = [v for v in values if v.axes]
        if not wide:
            return (), None, [v.body for v in values]
        full = [v for v in wide if v.view is None]
        views = [v for v in wide if v.view is not None]
        kinds = {v.view for v in views}
        if full:
            axes, view = full[0].axes, None
            if any(len(v.axes) != len(axes) for v in full) or (views and len(axes) != 2):
                self.misfit(span, full, bool(views))
                return None
        elif len(kinds) == 1:
            axes, view = views[0].axes, views[0].view
        else:
            rows = next(v for v in views if v.view == "row")
            axes, view = (next(v for v in views if v.view == "col").axes[0], rows.axes[0]), None
        bodies = []
        for v in values:
            own = axes
            if v.view is not None and len(axes) == 2:
                own = axes[1:] if v.view == "row" else axes[:1]
            if not v.axes:
                own = ()
            for ours, theirs in zip(own, v.axes, strict=True):
                if not self.builder.solver.equal(ours.dim, theirs.dim):
                    self.unequal(span, wide)
                    return None
            bodies.append(v.over(own) if own != v.axes else v.body)
        return axes, view, bodies

    def misfit(self, span: Span, full: Sequence[Value], views: bool) -> None:
        """Report operands of different order."""
        orders = {len(v.axes) for v in full}
        shapes = " and ".join(dict.fromkeys(self.shape(v) for v in full))
        if views and orders == {1}:
            message, hint = f"a view of a matrix meets a vector {shapes}", "use it without the view"
        elif orders == {1, 2}:
            message = f"{shapes} do not combine: a vector and a matrix"
            hint = "`row(x)` and `col(x)` lay a vector along an axis of a matrix"
        else:
            message, hint = f"{shapes} do not combine element by element", "use `einsum`"
        self.error(span, message, hint)

    def unequal(self, span: Span, values: Sequence[Value]) -> None:
        """Report operands of unequal sizes."""
        if not self.builder.solver.news([dim for v in values for dim in v.dims], []):
            return
        shapes = dict.fromkeys(
            f"{v.view}({self.shape(v)})" if v.view else self.shape(v) for v in values
        )
        vectors = all(len(v.axes) == 1 and v.view is None for v in values)
        hint = "`outer(a, b)` is the matrix of all products of two vectors" if vectors else None
        self.error(span, f"{' and '.join(shapes)} do not combine: the sizes differ", hint)

    def shape(self, value: Value) -> str:
        """Dims of a value for a message."""
        return shown(map(self.builder.solver.resolve, value.dims))

    def same(self, span: Span, a: Dim, b: Dim, what: str) -> bool:
        """Whether two sizes are equal; reports where not."""
        if self.builder.solver.equal(a, b):
            return True
        if not self.builder.solver.news([a], [b]):
            return False
        a, b = self.builder.solver.resolve(a), self.builder.solver.resolve(b)
        self.error(span, f"{what}: `{a}` against `{b}`")
        return False
