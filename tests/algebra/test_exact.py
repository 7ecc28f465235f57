"""The derived backward of three unrolled tokens against sympy's derivatives, to 40 digits."""

from __future__ import annotations

from itertools import product
from typing import Any

import mpmath
import pytest
import sympy
from unrolled import Dual, Values, carry_out

from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.ir.nodes import Array, Step
from steps import STEPS

SIZES = {"K": 2, "V": 2, "D": 2}
TOKENS = 3
Group = dict[tuple[str, tuple[int, ...]], Any]


@pytest.fixture(autouse=True)
def fifty_digits() -> Any:
    with mpmath.workdps(50):
        yield


def _places(array: Array) -> list[tuple[int, ...]]:
    return list(product(*(range(dim.evaluate(SIZES)) for dim in array.dims)))


def _next(step: Step, token: Values) -> Values:
    """The elements of the states after a token, under the names that the next token reads."""
    return {
        (state.old, places): token[state.new, places]
        for state in step.states
        for places in _places(step.array(state.old))
    }


def _forward(step: Step, start: Values, inputs: list[Values], heads: Values) -> list[Values]:
    tokens: list[Values] = []
    for given in inputs:
        values = {**(_next(step, tokens[-1]) if tokens else start), **given, **heads}
        carry_out(step.statements, values, SIZES)
        tokens.append(values)
    return tokens


def _backward(step: Step, tokens: list[Values], weights: list[Values]) -> list[Group]:
    """Adjoints by token of everything that owes a gradient, for a loss on all outputs."""
    backward = differentiate(step)
    carried: Values = {}
    found: list[Group] = []
    for token, weight in zip(reversed(tokens), reversed(weights), strict=True):
        values = dict(token)
        for name, seed in backward.seeds:
            for places in _places(step.array(name)):
                key = name, places
                values[seed, places] = weight.get(key, 0) + carried.get(key, mpmath.mpf(0))
        carry_out(backward.statements, values, SIZES)
        found.append(
            {
                (name, places): values.get((adjoint or "", places), 0)
                for name, adjoint in backward.results
                for places in _places(step.array(name))
            }
        )
        carried = {
            (state.new, places): found[-1][state.old, places]
            for state in step.states
            for places in _places(step.array(state.old))
        }
    return found[::-1]


def _keys(step: Step, role: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(a.name, places) for a in step.arrays if a.role == role for places in _places(a)]


def _number(n: int) -> Any:
    """Fractions of both signs, no two of equal size."""
    return mpmath.mpf((1, -1, 1)[n % 3] * (7 * n % 23 + 5)) / (19 + 4 * n)


def _label(key: tuple[str, tuple[int, ...]], t: int) -> Any:
    return sympy.Symbol(f"{key[0]}_{t}_{'_'.join(map(str, key[1]))}", real=True)


def test_delta_rule_as_polynomials() -> None:
    """Symbols all the way: every difference expands to zero."""
    step = hoist(STEPS["delta"])
    inputs = [{key: _label(key, t) for key in _keys(step, "input")} for t in range(TOKENS)]
    start = {key: _label(key, 0) for key in _keys(step, "state")}
    output = [("y", places) for places in _places(step.array("y"))]
    weights = [{key: _label(key, t) for key in output} for t in range(TOKENS)]
    tokens = _forward(step, start, inputs, {})
    loss = sum(w * tokens[t][key] for t in range(TOKENS) for key, w in weights[t].items())
    found = _backward(step, tokens, weights)
    pairs = [(x, found[t][key]) for t in range(TOKENS) for key, x in inputs[t].items()]
    pairs += [(x, found[0][key]) for key, x in start.items()]
    assert len(pairs) == 3 * 7 + 4
    for symbol, got in pairs:
        assert sympy.expand(sympy.diff(loss, symbol) - sympy.nsimplify(got, rational=True)) == 0


@pytest.mark.parametrize("name", sorted(STEPS))
@pytest.mark.parametrize("hoisted", [False, True])
def test_three_tokens(name: str, hoisted: bool) -> None:
    step = hoist(STEPS[name]) if hoisted else STEPS[name]
    slots = [(key, t) for t in range(TOKENS) for key in _keys(step, "input")]
    slots += [(key, 0) for role in ("state", "param") for key in _keys(step, role)]
    unit = {slot: n for n, slot in enumerate(slots)}

    def dual(slot: tuple[tuple[str, tuple[int, ...]], int]) -> Dual:
        tangent = tuple(mpmath.mpf(n == unit[slot]) for n in range(len(slots)))
        return Dual(_number(unit[slot]), tangent)

    inputs = [{key: dual((key, t)) for key in _keys(step, "input")} for t in range(TOKENS)]
    start = {key: dual((key, 0)) for key in _keys(step, "state")}
    heads = {key: dual((key, 0)) for key in _keys(step, "param")}
    tokens = _forward(step, start, inputs, heads)
    output = [(step.output, places) for places in _places(step.array(step.output))]
    weights = [
        {key: _number(2 * n + 31 * t) for n, key in enumerate(output)} for t in range(TOKENS)
    ]
    numbers = [
        {k: x.value if isinstance(x, Dual) else x for k, x in token.items()} for token in tokens
    ]
    found = _backward(step, numbers, weights)
    for slot, n in unit.items():
        key, t = slot
        ours = sum(f[key] for f in found) if key in heads else found[t][key]
        want = sum(
            w * tokens[s][k].tangent[n] for s in range(TOKENS) for k, w in weights[s].items()
        )
        assert abs(ours - want) < mpmath.mpf(10) ** -38, slot
