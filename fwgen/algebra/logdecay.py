"""The logarithm of a decay, taken symbolically, so that products of decays are sums."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fwgen.algebra.affine import Domain, Part, collapsed
from fwgen.ir.fresh import Names
from fwgen.ir.nodes import Apply, Array, Const, Load, Scalar, Statement, Step, Var
from fwgen.ir.ops import OPS
from fwgen.ir.walk import rename, substitute, variables

Axis = Literal["key", "value"]


@dataclass(frozen=True, slots=True)
class Decay:
    """A decay array of a state: `array` is what the state is multiplied by, along `axis`.

    `axis` is None for a scalar. Where the decay is an exp, a sigmoid or a product of such,
    `log_array` holds its logarithm and `array = exp(log_array)` is a statement of its own; else
    `log_array` is None. `differentiable`: whether a gradient flows through it to an input, a param
    or a state (not so for constants, buffers and conditions).
    """

    state: str
    array: str
    log_array: str | None
    axis: Axis | None
    differentiable: bool


MOST_FACTORS = 64


def logarithm(expression: Scalar, definitions: Mapping[str, Statement]) -> Scalar | None:
    """log(expression) without a logarithm in it, or None.

    `definitions` are the local arrays whose element-wise definition may be looked through.
    """
    return _Logarithm(definitions).of(expression)


class _Logarithm:
    """Logarithms of products; gives up after `MOST_FACTORS` factors."""

    def __init__(self, definitions: Mapping[str, Statement]) -> None:
        self.definitions, self.left = definitions, MOST_FACTORS

    def of(self, expression: Scalar) -> Scalar | None:
        self.left -= 1
        if self.left < 0:
            return None
        match expression:
            case Const(value):
                return Const(math.log(value)) if value > 0 else None
            case Apply("exp", (inner,)):
                return inner
            case Apply("sigmoid", (inner,)):
                return Apply("logsigmoid", (inner,))
            case Apply("sub", (Const(1), Apply("sigmoid", (inner,)))):
                return Apply("logsigmoid", (Apply("neg", (inner,)),))
            case Apply("mul", args):
                return self._mapped("add", args)
            case Apply("div", args):
                return self._mapped("sub", args)
            case Apply(("sqrt" | "rsqrt" | "square") as op, args):
                power = {"sqrt": 0.5, "rsqrt": -0.5, "square": 2.0}[op]
                return self._mapped("mul", args, Const(power))
            case Apply("select", (condition, *branches)):
                return self._mapped("select", tuple(branches), condition)
            case Load(array, index) if array in self.definitions:
                statement = self.definitions[array]
                places = dict(zip(statement.free, index, strict=True))
                return self.of(substitute(statement.body, places))
        return None

    def _mapped(self, op: str, args: tuple[Scalar, ...], *first: Scalar) -> Scalar | None:
        """`op` of the logarithms of `args`, after the arguments `first`."""
        found: list[Scalar] = list(first)
        for argument in args:
            log = self.of(argument)
            if log is None:
                return None
            found.append(log)
        return Apply(op, tuple(found))


def definitions_of(step: Step) -> dict[str, Statement]:
    """The local arrays that one element-wise statement over all of their axes defines."""
    count = Counter(statement.target for statement in step.statements)
    return {
        s.target: s
        for s in step.statements
        if count[s.target] == 1
        and not s.over
        and all(index.variable is not None for index in s.index)
    }


def update_parts(step: Step, state: str) -> list[Part] | None:
    """The parts of a state's update statement, None where it is a sum over more."""
    return _parts(step, state, {})


def expanded_parts(step: Step, state: str) -> list[Part] | None:
    """As `update_parts`, with versions of the state that are arrays of their own looked through."""
    return _parts(step, state, definitions_of(step))


def _parts(step: Step, state: str, versions: Mapping[str, Statement]) -> list[Part] | None:
    own = next(s for s in step.states if s.name == state)
    statement = definitions_of(step).get(own.new)
    if statement is None:
        return None
    rank = {array.name: len(array.dims) for array in step.arrays}
    bases = {s.old for s in step.states} | {s.new for s in step.states}
    matrices = {own.old, *(a.name for a in step.arrays if len(a.dims) > 1 and a.role != "input")}
    inner = {name: found for name, found in versions.items() if rank[name] > 1}

    def resolve(load: Load) -> list[Part] | None:
        if load.index != statement.index:
            return None
        if load.array in bases or load.array not in inner:
            return [Part(load)]
        found = inner[load.array]
        places = dict(zip(found.free, load.index, strict=True))
        return domain.value(substitute(found.body, places))

    domain = Domain(matrices, resolve, lambda whole: whole)
    return collapsed(domain.value(statement.body), statement.free)


def with_log_decays(step: Step, generated: Collection[str]) -> tuple[Step, tuple[Decay, ...]]:
    """Name the decays of all states and split those that have a logarithm in two statements.

    `generated` are the array names that may be replaced by `d_<state>`.
    """
    decays: list[Decay] = []
    for state in step.states:
        parts = update_parts(step, state.name) or []
        own = [part for part in parts if part.base is not None and part.base.array == state.old]
        if len(own) != 1 or own[0].wide or own[0].negative or own[0].base is None:
            continue
        axes = variables(own[0].base)
        for factor in own[0].narrow:
            if isinstance(factor, Load):
                step, array = _named(step, state.name, factor.array, generated)
                split = next((d for d in decays if d.array == array), None)
                step, log_array = (step, split.log_array) if split else _split(step, array)
                moves = _moves(factor if array == factor.array else Load(array, factor.index), step)
                decays.append(Decay(state.name, array, log_array, _axis(factor, axes), moves))
    return step, tuple(decays)


def _axis(factor: Load, axes: Sequence[Var]) -> Axis | None:
    own = variables(factor)
    return None if not own else "key" if own[0] == axes[-1] else "value"


def _named(step: Step, state: str, array: str, generated: Collection[str]) -> tuple[Step, str]:
    """Give a generated decay array the name that says so."""
    if array not in generated or array.startswith("d_"):
        return step, array
    name = Names(a.name for a in step.arrays).fresh(f"d_{state}")
    arrays = tuple(replace(a, name=name) if a.name == array else a for a in step.arrays)
    statements = tuple(rename(statement, {array: name}) for statement in step.statements)
    return replace(step, arrays=arrays, statements=statements), name


def _split(step: Step, array: str) -> tuple[Step, str | None]:
    """`d = e` becomes `log_d = log e; d = exp(log_d)`, where log e is known."""
    definitions = definitions_of(step)
    definition = definitions.get(array)
    log = None if definition is None else logarithm(definition.body, definitions)
    if definition is None or log is None:
        return step, None
    name = Names(a.name for a in step.arrays).fresh(f"log_{array}")
    first = replace(definition, target=name, body=log)
    second = replace(definition, body=Apply("exp", (Load(name, definition.index),)))
    position = step.statements.index(definition)
    statements = (*step.statements[:position], first, second, *step.statements[position + 1 :])
    arrays = (*step.arrays, Array(name, step.array(array).dims, "local"))
    return replace(step, arrays=arrays, statements=statements), name


def _moves(load: Load, step: Step) -> bool:
    """Whether a gradient flows from an array to a floating input, a param or a state."""
    moving = {
        a.name
        for a in step.arrays
        if a.role in ("param", "state") or (a.role == "input" and a.floating)
    }
    for statement in step.statements:
        if any(node.array in moving for node in _differentiable(statement.body)):
            moving.add(statement.target)
    return load.array in moving


def _differentiable(expression: Scalar) -> Iterator[Load]:
    """The accesses that a derivative of the expression reaches."""
    match expression:
        case Load():
            yield expression
        case Apply("select", (_, left, right)):
            yield from _differentiable(left)
            yield from _differentiable(right)
        case Apply(op, args) if OPS[op].kind != "bool" and op not in ("stop_gradient", "sign"):
            for argument in args:
                yield from _differentiable(argument)
