"""Integer expressions over constants, loop variables and sizes: subscripts, ranges, shifts."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Apply, Const, Scalar, Size
from fwgen.language import tree
from fwgen.language.dims import DimError, bounded, power
from fwgen.language.names import did_you_mean

if TYPE_CHECKING:
    from fwgen.language.evaluate import Evaluator


def integer(ev: Evaluator, node: tree.Expression) -> Dim | None:
    """An integer expression over constants, loop variables and sizes."""
    try:
        return _integer(ev, node)
    except DimError as fault:
        ev.error(node.span, str(fault))
    return None


def _integer(ev: Evaluator, node: tree.Expression) -> Dim | None:
    ev.count_part(node)
    match node:
        case tree.Number(_, literal) if isinstance(literal, int):
            return Dim.of(literal)
        case tree.Name(_, name) if name in ev.scope.values:
            value = ev.scope.values[name]
            if value is None:
                return None
            if not value.axes and (size := _size_of(value.body)) is not None:
                return size
        case tree.Name(_, name) if name in ev.scope.sizes:
            return ev.scope.sizes[name]
        case tree.Name(span, name) if name != "t" and name not in ev.scope.later:
            if not ev.lenient:
                ev.error(span, f"there is no size or constant `{name}`", _near(ev, name))
                ev.scope.values[name] = None
            return None
        case tree.Unary(_, "neg", operand):
            inner = _integer(ev, operand)
            return None if inner is None else -inner
        case tree.Call(_, tree.Name(_, "size"), (argument,), ()):
            return _integer(ev, argument)
        case tree.Binary(_, op, left, right) if op in INTEGER:
            a, b = _integer(ev, left), _integer(ev, right)
            return None if a is None or b is None else INTEGER[op](a, b)
    ev.error(node.span, "this is not a constant integer", "only constants and sizes count")
    return None


def _size_of(body: Scalar) -> Dim | None:
    """A scalar that only sizes and whole numbers make up, as a size."""
    match body:
        case Const(value) if value % 1 == 0:
            return Dim.of(int(value))
        case Size(dim):
            return dim
        case Apply("neg", (inner,)):
            found = _size_of(inner)
            return None if found is None else -found
        case Apply("add" | "sub" | "mul" as op, args):
            sizes = [_size_of(arg) for arg in args]
            known = [size for size in sizes if size is not None]
            return reduce(INTEGER[op], known) if len(known) == len(sizes) else None
    return None


def _near(ev: Evaluator, name: str) -> str | None:
    if not ev.report.readable:
        return None
    constants = [n for n, v in ev.scope.values.items() if v is not None and v.constant is not None]
    return did_you_mean(name, [*ev.scope.sizes, *constants])


INTEGER: dict[str, Callable[[Dim, Dim], Dim]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: bounded(a * b),
    "pow": power,
}
