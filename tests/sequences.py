"""Random problems for one head of a step, and the loss that the gradient tests differentiate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fwgen.ir.interpret import Gradients, run, run_backward, run_step
from fwgen.ir.nodes import Apply, Array, Backward, Index, Load, Scalar, Statement, Step
from fwgen.ir.walk import rewrite, scalars, variables

Group = dict[str, np.ndarray]
Direction = dict[str | tuple[str, str], np.ndarray]


@dataclass(frozen=True)
class Sequence:
    """One sequence of one head, and the weights of the loss sum(dy * y) + sum(dfinal * final)."""

    sizes: dict[str, int]
    inputs: Group
    heads: Group
    states: Group
    dy: np.ndarray
    dfinal: Group
    position: int = 0


def draw(step: Step, sizes: dict[str, int], length: int, seed: int, position: int = 0) -> Sequence:
    """Normal numbers; the states start away from zero, whole numbers where nothing floats."""
    rng = np.random.default_rng(seed)

    def shape(name: str) -> tuple[int, ...]:
        return tuple(dim.evaluate(sizes) for dim in step.array(name).dims)

    def sample(name: str, *lead: int) -> np.ndarray:
        values = rng.standard_normal((*lead, *shape(name)))
        return values if step.array(name).floating else (values > 0.5).astype(np.int64)

    roles = {a.name: a.role for a in step.arrays}
    inputs = {n: sample(n, length) for n, role in roles.items() if role == "input"}
    heads = {n: sample(n) for n, role in roles.items() if role in ("param", "buffer")}
    states = {s.name: 0.5 * sample(s.old) for s in step.states}
    dfinal = {s.name: sample(s.new) for s in step.states}
    return Sequence(sizes, inputs, heads, states, sample(step.output, length), dfinal, position)


def loss(step: Step, problem: Sequence) -> float:
    y, final = run(
        step, problem.inputs, problem.heads, problem.states, problem.sizes, problem.position
    )
    total = float((problem.dy * y).sum())
    return total + sum(float((w * final[name]).sum()) for name, w in problem.dfinal.items())


def gradients(backward: Backward, problem: Sequence) -> Gradients:
    return run_backward(
        backward,
        problem.inputs,
        problem.heads,
        problem.states,
        problem.sizes,
        problem.dy,
        problem.dfinal,
        problem.position,
    )


def directions(step: Step, problem: Sequence, seed: int) -> Direction:
    """A random direction for everything that owes a gradient, keyed as `gradients`."""
    rng = np.random.default_rng(seed)
    roles = {a.name: a for a in step.arrays}
    found: Direction = {}
    for name, value in {**problem.inputs, **problem.heads}.items():
        if roles[name].role in ("input", "param") and roles[name].floating:
            found[name] = rng.standard_normal(value.shape)
    for name, value in problem.states.items():
        found["state", name] = rng.standard_normal(value.shape)
    return found


def moved(problem: Sequence, along: Direction, by: float) -> Sequence:
    """The problem with every differentiable tensor moved along a direction."""

    def shift(group: Group, key: Callable[[str], str | tuple[str, str]]) -> Group:
        return {n: x + by * along[key(n)] if key(n) in along else x for n, x in group.items()}

    return replace(
        problem,
        inputs=shift(problem.inputs, lambda n: n),
        heads=shift(problem.heads, lambda n: n),
        states=shift(problem.states, lambda n: ("state", n)),
    )


def slope(step: Step, problem: Sequence, along: Direction) -> float:
    """The derivative of the loss along a direction: central differences of fourth order."""
    h = 1e-4
    near = loss(step, moved(problem, along, h)) - loss(step, moved(problem, along, -h))
    far = loss(step, moved(problem, along, 2 * h)) - loss(step, moved(problem, along, -2 * h))
    return (8 * near - far) / (12 * h)


def assert_gradients(step: Step, backward: Backward, problem: Sequence, seed: int) -> None:
    """Every gradient alone, and all together, against differences; raises AssertionError."""
    found = gradients(backward, problem)
    along = directions(step, problem, seed)
    step, problem = frozen(step, problem)
    cases = [{name: value} for name, value in along.items()] + [along]
    for case in cases:
        want = slope(step, problem, case)
        got = sum(float((found[name] * value).sum()) for name, value in case.items())
        scale = sum(float(np.abs(found[name] * value).sum()) for name, value in case.items())
        error = abs(got - want)
        assert error <= 1e-8 * max(scale, 1.0), f"{list(case)}: {got} against {want}"


def frozen(step: Step, problem: Sequence) -> tuple[Step, Sequence]:
    """Each `stop_gradient(e)` as an input that holds what e is at this problem.

    Differences of the loss then see what the gradient is defined to see.
    """
    arrays, statements, changed = list(step.arrays), [], []
    for number, statement in enumerate(step.statements):
        found = [n for n in scalars(statement.body) if isinstance(n, Apply)]
        for place, node in enumerate(n for n in found if n.op == "stop_gradient"):
            name = f"stopped_{number}_{place}"
            own = variables(node)
            index = tuple(map(Index.of, own))
            arrays.append(Array(name, tuple(v.dim for v in own), "local", floating=False))
            statements.append(Statement(name, index, node.args[0]))
            body = _replaced(statement.body, node, Load(name, index))
            statement = replace(statement, body=body)
        statements.append(statement)
        changed.append(statement)
    probe = replace(step, arrays=tuple(arrays), statements=tuple(statements))
    names = [a.name for a in arrays[len(step.arrays) :]]
    recorded: dict[str, list[np.ndarray]] = {name: [] for name in names}
    states = dict(problem.states)
    for t, _ in enumerate(problem.dy):
        values = {**problem.heads, **{n: x[t] for n, x in problem.inputs.items()}}
        values.update({s.old: states[s.name] for s in step.states})
        token = run_step(probe, values, problem.sizes, problem.position + t)
        states = {s.name: token[s.new] for s in step.states}
        for name in names:
            recorded[name].append(token[name])
    inputs = {**problem.inputs, **{n: np.array(x) for n, x in recorded.items()}}
    given = tuple(replace(a, role="input") if a.name in recorded else a for a in arrays)
    fixed = replace(step, arrays=given, statements=tuple(changed))
    return fixed, replace(problem, inputs=inputs)


def _replaced(expression: Scalar, old: Scalar, new: Scalar) -> Scalar:
    return rewrite(expression, lambda node: new if node == old else node)
