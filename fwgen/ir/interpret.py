"""Step IR run in numpy: the oracle for every backend. Simple and slow, float64 or wider."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fwgen.ir.dims import Dim
from fwgen.ir.functions import FUNCTIONS
from fwgen.ir.nodes import (
    Apply,
    Array,
    Backward,
    Const,
    Index,
    IndexValue,
    Load,
    Position,
    Scalar,
    Size,
    Statement,
    Step,
    Var,
)

Values = dict[str, np.ndarray]
Sizes = Mapping[str, int]


class _Evaluator:
    """Scalar expressions over the grid of all values of a statement's variables."""

    def __init__(self, variables: tuple[Var, ...], values: Values, sizes: Sizes, t: int) -> None:
        self.values, self.sizes, self.t = values, sizes, t
        self.shape = tuple(var.dim.evaluate(sizes) for var in variables)
        self.grid = {}
        for axis, (var, size) in enumerate(zip(variables, self.shape, strict=True)):
            shape = [1] * len(variables)
            shape[axis] = size
            self.grid[var.name] = np.arange(size).reshape(shape)

    def index(self, index: Index) -> np.ndarray:
        total = np.asarray(index.offset.evaluate(self.sizes))
        for coefficient, var in index.terms:
            total = total + coefficient.evaluate(self.sizes) * self.grid[var.name]
        return total if index.modulo is None else np.mod(total, index.modulo.evaluate(self.sizes))

    def element(self, load: Load) -> Any:
        array = self.values[load.array]
        if not load.index:
            return array
        places = tuple(map(self.index, load.index))
        for place in places:
            if place.size and place.min() < 0:
                raise IndexError(f"negative index into {load.array}")
        return array[places]

    def scalar(self, expression: Scalar) -> Any:
        match expression:
            case Const(value):
                return value
            case Size(dim):
                return dim.evaluate(self.sizes)
            case Position():
                return self.t
            case IndexValue(index):
                return self.index(index)
            case Load():
                return self.element(expression)
            case Apply(op, args):
                return self.apply(op, [self.scalar(argument) for argument in args])

    def apply(self, op: str, args: list[Any]) -> Any:
        if op in ("add", "mul"):
            total = args[0]
            for argument in args[1:]:
                total = total + argument if op == "add" else total * argument
            return total
        return FUNCTIONS[op](*args)


_REDUCE: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min}


def run_statement(statement: Statement, values: Values, sizes: Sizes, t: int) -> None:
    """Carry out one statement on the arrays in `values`; the target exists already."""
    variables = (*statement.free, *statement.over)
    evaluator = _Evaluator(variables, values, sizes, t)
    target = values[statement.target]
    with np.errstate(all="ignore"):
        result = np.broadcast_to(evaluator.scalar(statement.body), evaluator.shape)
        if statement.reduce is not None:
            axes = tuple(range(len(statement.free), len(variables)))
            result = _REDUCE[statement.reduce](result, axis=axes)
    free = _Evaluator(statement.free, values, sizes, t)
    places = tuple(np.broadcast_to(free.index(i), free.shape) for i in statement.index)
    if statement.accumulate:
        np.add.at(target, places, result)
    else:
        target[places] = result


def _shape(dims: tuple[Dim, ...], sizes: Sizes) -> tuple[int, ...]:
    return tuple(dim.evaluate(sizes) for dim in dims)


def _dtype(values: Mapping[str, np.ndarray]) -> np.dtype[Any]:
    floats = [v.dtype for v in values.values() if v.dtype.kind == "f"]
    return np.result_type(np.float64, *floats)


def _run(
    arrays: tuple[Array, ...],
    statements: tuple[Statement, ...],
    values: Values,
    sizes: Sizes,
    t: int,
    fill: float,
) -> None:
    dtype = _dtype(values)
    for array in arrays:
        if array.name not in values:
            values[array.name] = np.full(_shape(array.dims, sizes), fill, dtype)
    for statement in statements:
        run_statement(statement, values, sizes, t)


def run_step(
    step: Step, values: Mapping[str, np.ndarray], sizes: Sizes, t: int = 0
) -> dict[str, np.ndarray]:
    """One token of one head.

    `values` holds inputs, params, buffers and *old* state arrays by array name, shapes as declared.
    Returns all arrays; what no statement wrote is NaN.
    """
    result = {name: np.asarray(value) for name, value in values.items()}
    _run(step.arrays, step.statements, result, sizes, t, math.nan)
    return result


def start_states(
    step: Step,
    heads: Mapping[str, np.ndarray],
    states: Mapping[str, np.ndarray],
    sizes: Sizes,
) -> dict[str, np.ndarray]:
    """The arrays before the first token by state name: given, a param, or the start number."""
    found = {}
    for state in step.states:
        if state.name in states:
            found[state.name] = np.asarray(states[state.name])
        elif state.init is None:
            found[state.name] = np.asarray(heads[state.name])
        else:
            shape = _shape(step.array(state.old).dims, sizes)
            found[state.name] = np.full(shape, state.init, np.float64)
    return found


def _tokens(
    step: Step,
    inputs: Mapping[str, np.ndarray],
    heads: Mapping[str, np.ndarray],
    states: dict[str, np.ndarray],
    sizes: Sizes,
    position: int,
) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """All arrays of every token, and the final states."""
    length = len(next(iter(inputs.values()))) if inputs else 0
    fixed = {a.name: heads[a.name] for a in step.arrays if a.role in ("param", "buffer")}
    tokens = []
    for t in range(length):
        values = {**fixed, **{name: np.asarray(x[t]) for name, x in inputs.items()}}
        values.update({state.old: states[state.name] for state in step.states})
        tokens.append(run_step(step, values, sizes, position + t))
        states = {state.name: tokens[-1][state.new] for state in step.states}
    return tokens, states


def run(
    step: Step,
    inputs: Mapping[str, np.ndarray],
    heads: Mapping[str, np.ndarray],
    states: Mapping[str, np.ndarray],
    sizes: Sizes,
    position: int = 0,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A sequence of one head: inputs `[T, *dims]`, heads (params and buffers) and states `[*dims]`.

    Returns y `[T, *dims]` and the final states by state name. States that are not given start at
    their start value.
    """
    start = start_states(step, heads, states, sizes)
    tokens, final = _tokens(step, inputs, heads, start, sizes, position)
    shape = _shape(step.array(step.output).dims, sizes)
    y = np.stack([token[step.output] for token in tokens]) if tokens else np.zeros((0, *shape))
    return y, final


Gradients = dict[str | tuple[str, str], np.ndarray]


def run_backward(
    backward: Backward,
    inputs: Mapping[str, np.ndarray],
    heads: Mapping[str, np.ndarray],
    states: Mapping[str, np.ndarray],
    sizes: Sizes,
    dy: np.ndarray | None,
    dfinal: Mapping[str, np.ndarray] | None = None,
    position: int = 0,
) -> Gradients:
    """Gradients of a sequence for `dy` `[T, *dims]` and the adjoints of the final states (by name).

    Keys: the name of each floating input `[T, *dims]` and param `[*dims]`, and `("state", name)`
    for the start states. A learned start that was used has its gradient under the state's name too.
    """
    step = backward.forward
    start = start_states(step, heads, states, sizes)
    tokens, _ = _tokens(step, inputs, heads, start, sizes, position)
    given = {n: np.zeros_like(x) for n, x in start.items()} | dict(dfinal or {})
    carried = {s.name: np.array(given[s.name], dtype=np.float64) for s in step.states}
    inputs_of, params_of = _wanted(backward, "input"), _wanted(backward, "param")
    found: Gradients = {name: np.zeros(np.shape(inputs[name])) for name in inputs_of}
    found.update({name: np.zeros(np.shape(heads[name])) for name in params_of})
    for t in reversed(range(len(tokens))):
        adjoints = _token_adjoints(
            backward, tokens[t], None if dy is None else dy[t], carried, sizes, position + t
        )
        for name in inputs_of:
            found[name][t] = adjoints[name]
        for name in params_of:
            found[name] += adjoints[name]
        carried = {state.name: adjoints[state.old] for state in step.states}
    for state in step.states:
        found["state", state.name] = carried[state.name]
        if state.init is None:
            used = state.name not in states
            found[state.name] = carried[state.name] * (1.0 if used else 0.0)
    return found


def _wanted(backward: Backward, role: str) -> list[str]:
    """Arrays of a role that have a gradient."""
    names = {name for name, _ in backward.results}
    return [a.name for a in backward.forward.arrays if a.role == role and a.name in names]


def _token_adjoints(
    backward: Backward,
    token: Mapping[str, np.ndarray],
    dy: np.ndarray | None,
    dstates: Mapping[str, np.ndarray],
    sizes: Sizes,
    t: int,
) -> dict[str, np.ndarray]:
    """The adjoints of one token, keyed as `backward.results`."""
    step, values = backward.forward, dict(token)
    incoming = {state.new: np.array(dstates[state.name]) for state in step.states}
    output = np.zeros(_shape(step.array(step.output).dims, sizes)) if dy is None else np.array(dy)
    incoming[step.output] = output + incoming.get(step.output, 0)
    for name, seed in backward.seeds:
        values[seed] = incoming[name]
    _run(backward.arrays, backward.statements, values, sizes, t, 0.0)
    result = {}
    for name, adjoint in backward.results:
        shape = _shape(step.array(name).dims, sizes)
        result[name] = np.zeros(shape) if adjoint is None else values[adjoint]
    return result
