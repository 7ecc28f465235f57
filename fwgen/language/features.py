"""Feature maps: those that a rule defines, and the shipped ones, as functions of the language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fwgen.ir.dims import Dim
from fwgen.language import tree
from fwgen.language.evaluate import Evaluator, Scope
from fwgen.language.functions import bind
from fwgen.language.source import Span
from fwgen.language.statements import assignable, keeps_shape, storable, value_of
from fwgen.language.values import Value, is_cheap, is_plain, number

DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Tensor:
    """A param or buffer that a shipped map brings along."""

    role: str
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class FeatureMap:
    """`name(parameters, options): body`.

    `shapes` are the declared dims of the parameters of a shipped map, `options` its constants with
    their defaults; both are empty for a rule's own map, which sees the rule's constants instead.
    """

    name: str
    parameters: tuple[str, ...]
    body: tuple[tree.Statement, ...] | None
    shipped: bool = False
    shapes: tuple[tuple[Dim, ...], ...] = ()
    options: Mapping[str, int | float] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    text: str = ""


def call_map(ev: Evaluator, node: tree.Call, called: FeatureMap) -> Value | None:
    """The value of a feature map at its arguments."""
    nodes = bind(ev, node, called.parameters, tuple(called.options))
    if nodes is None:
        return None
    if called.name in ev.calls:
        ev.error(node.function.span, f"the feature map `{called.name}` calls itself")
        return None
    if len(ev.calls) >= DEEPEST:
        ev.error(node.span, f"feature maps call each other more than {DEEPEST} deep")
        return None
    arguments = [_argument(ev, nodes[name]) for name in called.parameters]
    options = _options(ev, called, nodes)
    values = [value for value in arguments if value is not None]
    if len(values) < len(arguments) or options is None or called.body is None:
        return None
    scope = _scope(ev, node.span, called, values, options)
    if scope is None:
        return None
    outside = ev.outside or (node.span if called.shipped else None)
    inner = replace(ev, scope=scope, calls=(*ev.calls, called.name), outside=outside)
    result = _run(inner, node.span, called)
    if result is None or ev.calls or not result.axes or is_cheap(result):
        return result
    return ev.builder.store(result, _name(called, nodes))


def probe_map(ev: Evaluator, span: Span, called: FeatureMap) -> None:
    """Evaluate a rule's own map that nothing calls, at arguments of which nothing is known."""
    arguments: dict[str, Value | None] = dict.fromkeys(called.parameters)
    scope = Scope({**ev.shared, **arguments}, ev.sizes)
    _run(replace(ev, scope=scope, calls=(*ev.calls, called.name)), span, called)


def _name(called: FeatureMap, nodes: Mapping[str, tree.Expression]) -> str:
    """What the features of an argument are called: `phi_k`."""
    first = nodes[called.parameters[0]]
    return f"{called.name}_{first.name}" if isinstance(first, tree.Name) else called.name


def _argument(ev: Evaluator, node: tree.Expression) -> Value | None:
    value = ev.value(node)
    if value is None:
        return None
    if value.view is not None or len(value.axes) > 1:
        shape = f"a view of {ev.shape(value)}" if value.view else ev.shape(value)
        ev.error(node.span, f"a feature map takes vectors and scalars, not {shape}")
        return None
    return value


def _options(
    ev: Evaluator, called: FeatureMap, nodes: Mapping[str, tree.Expression]
) -> dict[str, int | float] | None:
    found = dict(called.options)
    for name in called.options:
        if name not in nodes:
            continue
        value = ev.value(nodes[name])
        if value is None:
            return None
        if value.constant is None:
            ev.error(nodes[name].span, f"`{name}` of `{called.name}` is a constant")
            return None
        found[name] = value.constant
    return found


def _scope(
    ev: Evaluator,
    span: Span,
    called: FeatureMap,
    values: list[Value],
    options: Mapping[str, int | float],
) -> Scope | None:
    """What the body sees: its arguments, and constants, params and buffers."""
    arguments: dict[str, Value | None] = {}
    for name, value in zip(called.parameters, values, strict=True):
        many = _uses(called, name) > 1 and not is_plain(value)
        arguments[name] = ev.builder.store(value, name) if many else value
    if not called.shipped:
        return Scope({**ev.shared, **arguments}, ev.sizes)
    sizes: dict[str, Dim] = {}
    for name, shape, value in zip(called.parameters, called.shapes, values, strict=True):
        if len(shape) != len(value.axes):
            wanted = "a vector" if shape else "a scalar"
            what = f"`{name}` of `{called.name}` is {wanted}, not {ev.shape(value)}"
            ev.error(span, what)
            return None
        for dim, axis in zip(shape, value.axes, strict=True):
            known = sizes.setdefault(str(dim), axis.dim)
            if not ev.same(span, known, axis.dim, f"sizes `{dim}` of `{called.name}` differ"):
                return None
    for tensor in called.tensors.values():
        for name in sorted({name for dim in tensor.dims for name in dim.names}):
            sizes.setdefault(name, Dim.of(f"{called.name}_{name}"))
    tensors = _tensors(ev, span, called, sizes)
    if tensors is None:
        return None
    constants = {name: number(value) for name, value in options.items()}
    return Scope({**constants, **tensors, **arguments}, sizes)


def _uses(called: FeatureMap, name: str) -> int:
    """How often a body reads an argument; any loop counts as twice."""
    nodes = tree.expressions(called.body or ())
    loops = any(isinstance(node, tree.Range) for node in nodes)
    return sum(isinstance(node, tree.Name) and node.name == name for node in nodes) * (1 + loops)


def _tensors(
    ev: Evaluator, span: Span, called: FeatureMap, sizes: Mapping[str, Dim]
) -> dict[str, Value] | None:
    """The map's own tensors: one instance in a rule, under `<map>_<tensor>`."""
    found = {}
    for short, tensor in called.tensors.items():
        name = f"{called.name}_{short}"
        dims = tuple(dim.substitute(sizes) for dim in tensor.dims)
        known = ev.builder.arrays.get(name)
        if name in ev.builder.reserved:
            ev.error(span, f"`{name}` is a tensor of `{called.name}`; the rule uses the name")
            return None
        if known is None:
            ev.builder.declare(name, dims, "param" if tensor.role == "param" else "buffer")
        else:
            what = f"`{name}` serves one size of argument"
            pairs = zip(known.dims, dims, strict=True)
            if not all(ev.same(span, a, b, what) for a, b in pairs):
                return None
        found[short] = ev.builder.whole(name)
    return found


def _run(ev: Evaluator, span: Span, called: FeatureMap) -> Value | None:
    """Evaluate the body; its locals are temporaries."""
    locals_: dict[str, Value] = {}

    def assign(node: tree.Assign, value: Value | None) -> None:
        name = node.target.name
        if not assignable(ev, node.target, locals_):
            return
        if value is None or not storable(ev, node.value.span, value):
            ev.scope.values[name] = None
            return
        if name in locals_ and not keeps_shape(ev, node.target, locals_[name], value):
            ev.scope.values[name] = None
            return
        stored = value if value.constant is not None else ev.builder.store(value, name)
        locals_[name] = ev.scope.values[name] = stored

    assert called.body is not None
    line = ev.builder.line
    ev.count(span)
    try:
        return value_of(ev, called.body, assign)
    finally:
        ev.builder.line = line
