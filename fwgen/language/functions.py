"""The functions of the language: one row each, with its parameters and its lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fwgen.ir.nodes import Const, Size
from fwgen.language import products, reductions, structure, tree
from fwgen.language.source import Span
from fwgen.language.unroll import each
from fwgen.language.values import Value, number

if TYPE_CHECKING:
    from fwgen.language.evaluate import Evaluator


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a call passes: the syntax of each parameter that is given, and values on demand."""

    ev: Evaluator
    span: Span
    nodes: Mapping[str, tree.Expression]

    def value(self, name: str) -> Value | None:
        """The value of a parameter that is given."""
        return self.ev.value(self.nodes[name])

    def scalar(self, name: str, default: float) -> Value | None:
        """A scalar parameter with a default."""
        if name not in self.nodes:
            return number(default)
        value = self.value(name)
        if value is not None and value.axes:
            self.ev.error(self.nodes[name].span, f"`{name}` is a scalar")
            return None
        return value


Lower = Callable[[Arguments], Value | None]


@dataclass(frozen=True, slots=True)
class Function:
    """A function: required and optional parameters, in order, and its lowering."""

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    lower: Lower
    variadic: bool = False

    def call(self, ev: Evaluator, node: tree.Call) -> Value | None:
        """The value of a call; reports arguments that do not fit."""
        if self.variadic:
            return _joined(self, ev, node)
        nodes = bind(ev, node, self.required, self.optional)
        return None if nodes is None else self.lower(Arguments(ev, node.span, nodes))


def bind(
    ev: Evaluator, node: tree.Call, required: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, tree.Expression] | None:
    """Arguments by parameter, or None after reporting that they do not fit."""
    names = (*required, *optional)
    signature = ", ".join([*required, *(f"{name}=…" for name in optional)])
    hint = f"it is `{node.function.name}({signature})`"
    fine = len(node.arguments) <= len(names)
    if not fine:
        most = f"takes {len(names)} argument{'s' * (len(names) != 1)}"
        message = f"`{node.function.name}` {most}, not {len(node.arguments)}"
        ev.error(node.span, message, hint)
    found = dict(zip(names, node.arguments, strict=False))
    for word, value in node.keywords:
        if word.name not in names or word.name in found:
            what = "is given twice" if word.name in found else "is no parameter"
            ev.error(word.span, f"`{word.name}` {what} of `{node.function.name}`", hint)
            fine = False
        found[word.name] = value
    missing = [name for name in required if name not in found]
    if missing and fine:
        ev.error(node.span, f"`{node.function.name}` lacks its argument `{missing[0]}`", hint)
        fine = False
    if not fine:
        for value in found.values():
            ev.probe(value)
    return found if fine else None


def _joined(function: Function, ev: Evaluator, node: tree.Call) -> Value | None:
    """`concat` and `stack`: any number of arguments, or one comprehension."""
    if node.keywords or not node.arguments:
        span = node.keywords[0][0].span if node.keywords else node.span
        ev.error(span, f"`{function.name}` takes one or more values and no keywords")
        return None
    spans, values = [], []
    for argument in node.arguments:
        if isinstance(argument, tree.Each):
            found = each(ev, argument)
            spans += [argument.span] * len(found)
            values += found
        else:
            spans.append(argument.span)
            values.append(ev.value(argument))
    whole = [value for value in values if value is not None]
    if not whole or len(whole) < len(values):
        return None
    join = structure.concat if function.name == "concat" else structure.stack
    return join(ev, spans, whole)


def elementwise(name: str, *parameters: str) -> Function:
    """A function that acts on each element."""

    def lower(a: Arguments) -> Value | None:
        return a.ev.combine(name, a.span, *(a.value(parameter) for parameter in parameters))

    return Function(name, parameters, (), lower)


def _where(a: Arguments) -> Value | None:
    condition = a.ev.condition(a.nodes["condition"])
    return a.ev.combine("select", a.span, condition, a.value("a"), a.value("b"))


def _clamp(a: Arguments) -> Value | None:
    x, low, high = (a.value(parameter) for parameter in ("x", "lo", "hi"))
    bounds = [b.constant for b in (low, high) if b is not None and b.constant is not None]
    if bounds != sorted(bounds):
        a.ev.error(a.span, f"the bounds of `clamp` are out of order: {bounds[0]} and {bounds[1]}")
        return None
    return a.ev.combine("clamp", a.span, x, low, high)


def _row(a: Arguments) -> Value | None:
    return _view(a, "row")


def _col(a: Arguments) -> Value | None:
    return _view(a, "col")


def _view(a: Arguments, view: str) -> Value | None:
    value = a.value("a")
    if value is None or not products.vector(a.ev, a.span, value, f"`{view}` is a view of a vector"):
        return None
    return replace(value, view="row" if view == "row" else "col")


def _outer(a: Arguments) -> Value | None:
    left, right = a.value("a"), a.value("b")
    return None if left is None or right is None else products.outer(a.ev, a.span, left, right)


def _dot(a: Arguments) -> Value | None:
    left, right = a.value("a"), a.value("b")
    return None if left is None or right is None else products.dot(a.ev, a.span, left, right)


def _diag(a: Arguments) -> Value | None:
    value = a.value("a")
    what = "`diag` makes a matrix of a vector"
    if value is None or not products.vector(a.ev, a.span, value, what):
        return None
    return products.diag(a.ev, value)


def _eye(a: Arguments) -> Value | None:
    size = a.ev.integer(a.nodes["size"])
    if size is None:
        return None
    if not a.ev.builder.require(size - 1):
        a.ev.error(a.nodes["size"].span, f"a size is at least 1, not {size}")
        return None
    return products.eye(a.ev, size)


def _size(a: Arguments) -> Value | None:
    dim = a.ev.integer(a.nodes["dim"])
    if dim is None:
        return None
    known = dim.constant
    return Value((), Size(dim) if known is None else Const(known), kind="int")


def _einsum(ev: Evaluator, node: tree.Call) -> Value | None:
    if node.keywords:
        ev.error(node.keywords[0][0].span, "`einsum` takes no keywords")
        return None
    spec = node.arguments[0] if node.arguments else None
    values = [ev.value(argument) for argument in node.arguments[1:]]
    whole = [value for value in values if value is not None]
    if not isinstance(spec, tree.String) or not values:
        span = node.span if spec is None else spec.span
        ev.error(span, "`einsum` takes a text and its operands", 'as in `einsum("ij,j->i", W, q)`')
        return None
    return products.einsum(ev, spec.span, spec.value, whole) if len(whole) == len(values) else None


class _Einsum(Function):
    """`einsum`, whose first argument is a text."""

    def call(self, ev: Evaluator, node: tree.Call) -> Value | None:
        return _einsum(ev, node)


def _prev(a: Arguments) -> Value | None:
    ev, node = a.ev, a.nodes["state"]
    if ev.scope.states is None:
        ev.error(a.span, "`prev` is not seen inside a feature map", "pass the value as an argument")
    elif not isinstance(node, tree.Name):
        ev.error(node.span, "`prev` takes the bare name of a state")
    elif node.name not in ev.scope.states:
        if node.name in ev.scope.values:
            ev.error(node.span, f"`{node.name}` is no state; `prev` takes the name of a state")
        else:
            ev.unknown(node)
    else:
        return ev.fresh(ev.scope.states[node.name])
    return None


def _roll(a: Arguments) -> Value | None:
    value, shift = a.value("x"), a.ev.integer(a.nodes["shift"])
    if value is None or shift is None:
        return None
    if not products.vector(a.ev, a.span, value, "`roll` turns a vector"):
        return None
    return structure.roll(a.ev, value, shift)


def _flatten(a: Arguments) -> Value | None:
    value = a.value("x")
    if value is None:
        return None
    if not value.axes or value.view is not None:
        a.ev.error(a.span, f"`flatten` makes a vector of a matrix, not of {a.ev.shape(value)}")
        return None
    return structure.flatten(a.ev, a.span, value)


def _reduction(name: str) -> Function:
    def lower(a: Arguments) -> Value | None:
        axis = a.nodes.get("axis")
        if name in ("max", "min") and isinstance(axis, tree.Name | tree.Call | tree.Binary):
            message, hint = f"`{name}` takes one value", f"`{name}imum(a, b)` compares two"
            a.ev.error(axis.span, message, hint)
            a.value("x")
            return None
        return reductions.reduction(a.ev, a.span, name, a.value("x"), a.nodes.get("axis"))

    return Function(name, ("x",), ("axis",), lower)


def _normal(name: str, default: float | None) -> Function:
    def lower(a: Arguments) -> Value | None:
        value = a.value("x")
        eps = number(0) if default is None else a.scalar("eps", default)
        if value is None or eps is None:
            return None
        return reductions.normalised(a.ev, a.span, name, value, eps, a.nodes.get("axis"))

    return Function(name, ("x",), ("axis",) if default is None else ("eps", "axis"), lower)


def _nothing(_: Arguments) -> Value | None:
    raise AssertionError("variadic functions have a lowering of their own")


ELEMENTWISE = (
    *("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "abs", "sign", "sin", "cos", "tanh"),
    *("sigmoid", "logsigmoid", "softplus", "relu", "elu", "silu", "gelu", "square"),
    "stop_gradient",
)
EPSILONS = {
    "softmax": None,
    "l2norm": 1e-6,
    "sum_normalize": 0,
    "layernorm": 1e-5,
    "rmsnorm": 1e-6,
}
ROWS = (
    *(elementwise(name, "x") for name in ELEMENTWISE),
    elementwise("maximum", "a", "b"),
    elementwise("minimum", "a", "b"),
    Function("clamp", ("x", "lo", "hi"), (), _clamp),
    Function("where", ("condition", "a", "b"), (), _where),
    *(_reduction(name) for name in ("sum", "mean", "max", "min", "norm")),
    *(_normal(name, eps) for name, eps in EPSILONS.items()),
    Function("row", ("a",), (), _row),
    Function("col", ("a",), (), _col),
    Function("outer", ("a", "b"), (), _outer),
    Function("dot", ("a", "b"), (), _dot),
    Function("diag", ("a",), (), _diag),
    Function("eye", ("size",), (), _eye),
    Function("size", ("dim",), (), _size),
    _Einsum("einsum", ("spec",), (), _nothing),
    Function("prev", ("state",), (), _prev),
    Function("concat", (), (), _nothing, variadic=True),
    Function("stack", (), (), _nothing, variadic=True),
    Function("roll", ("x", "shift"), (), _roll),
    Function("flatten", ("x",), (), _flatten),
)
FUNCTIONS: dict[str, Function] = {row.name: row for row in ROWS}
FEATURES = ("identity", "l2norm", "softmax", "sum_normalize")
"""Feature maps that are functions of the language (`identity` is a shipped map)."""
