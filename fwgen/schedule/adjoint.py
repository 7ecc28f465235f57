"""The adjoint of a step made ready for scheduling: no write to an incoming seed, sums merged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fwgen.ir.dims import Dim
from fwgen.ir.fresh import Names
from fwgen.ir.nodes import Apply, Array, Backward, Const, Index, Load, Scalar, Statement, Step, Var
from fwgen.ir.walk import rename, substitute
from fwgen.schedule.copies import moves


@dataclass(frozen=True, slots=True)
class Adjoint:
    """Adjoint statements in single-assignment form with respect to the seeds.

    `carries` maps each state's name to (adjoint of the new array, adjoint of the old array).
    `gradients` maps inputs and params to the arrays that hold their gradients.
    """

    statements: tuple[Statement, ...]
    arrays: tuple[Array, ...]
    carries: tuple[tuple[str, str, str], ...]
    gradients: tuple[tuple[str, str], ...]
    output_seed: str


def adjoint(backward: Backward) -> Adjoint:
    """Close the seeds of a backward and name its carries.

    A state that nothing reads has a zero adjoint; it then gets an array that stays zero.
    """
    seeds = dict(backward.seeds)
    results = dict(backward.results)
    arrays = list(backward.arrays)
    statements = list(backward.statements)
    names = Names(a.name for a in (*backward.forward.arrays, *arrays))
    carries = []
    for state in backward.forward.states:
        seed, old = seeds[state.new], results.get(state.old)
        dims = backward.forward.array(state.old).dims
        if old is None:
            old = names.fresh(f"d_{state.old}", "")
            arrays.append(Array(old, dims, "local"))
            statements.append(_fill(old, dims))
        if any(s.target == seed for s in statements) or moves(statements, seed, old):
            whole = Array(names.fresh(f"{seed}_total"), dims, "local", of=seed)
            arrays.append(whole)
            statements = _closed(statements, seed, whole)
        carries.append((state.name, seed, old))
    roles = {a.name: a.role for a in backward.forward.arrays}
    gradients = tuple(
        (name, array)
        for name, array in backward.results
        if array is not None and roles[name] in ("input", "param")
    )
    output = seeds[backward.forward.output]
    return Adjoint(tuple(statements), tuple(arrays), tuple(carries), gradients, output)


def param_gradients(step: Step, adjoint: Adjoint) -> tuple[tuple[str, str], ...]:
    """Arrays that hold gradients of params, and the tensors that they go to."""
    params = {a.name for a in step.arrays if a.role == "param"}
    return tuple((array, f"grad {name}") for name, array in adjoint.gradients if name in params)


def _fill(name: str, dims: Sequence[Dim]) -> Statement:
    index = tuple(Index.of(Var(f"a{n}", dim)) for n, dim in enumerate(dims))
    return Statement(name, index, Const(0.0))


def _closed(statements: Sequence[Statement], seed: str, whole: Array) -> list[Statement]:
    """Accumulate onto a copy of the seed, and read that copy."""
    copy = _fill(whole.name, whole.dims)
    copy = replace(copy, body=Load(seed, copy.index), accumulate=True)
    first = next((n for n, s in enumerate(statements) if s.target == seed), 0)
    renamed = [rename(s, {seed: whole.name}) for s in statements]
    return [*renamed[:first], copy, *renamed[first:]]


def merged(
    statements: Sequence[Statement],
    arrays: Mapping[str, tuple[Dim, ...]],
    keep: Collection[str] = (),
) -> tuple[Statement, ...]:
    """Add up the element-wise contributions to an array in one statement.

    `arrays` are the accumulated arrays to treat, with their dims; `keep` start from a value that
    is already there.
    The merged statement assigns where it is the first writer and nothing was there. Sums over other
    variables and partial regions stay contributions of their own, after it.
    """
    groups: dict[str, list[Statement]] = {}
    for statement in statements:
        dims = arrays.get(statement.target)
        if statement.accumulate and dims is not None and _covers(statement, dims):
            groups.setdefault(statement.target, []).append(statement)
    done: list[Statement] = []
    last = {name: group[-1] for name, group in groups.items()}
    grouped = {id(m) for g in groups.values() for m in g}
    others = {s.target for s in statements if id(s) not in grouped}
    for statement in statements:
        group = groups.get(statement.target, [])
        if id(statement) not in grouped:
            done.append(statement)
        elif statement is last[statement.target]:
            partial = statement.target in others or statement.target in keep
            done.append(_sum(group, accumulate=partial))
    return tuple(done)


def _covers(statement: Statement, dims: tuple[Dim, ...]) -> bool:
    """Whether a statement adds to every element of its target, without a sum."""
    plain = [index.variable for index in statement.index]
    if statement.over or None in plain or len(set(plain)) != len(plain):
        return False
    return all(var is not None and var.dim == dim for var, dim in zip(plain, dims, strict=True))


def _sum(group: Sequence[Statement], accumulate: bool) -> Statement:
    first = group[0]
    bodies: list[Scalar] = []
    for statement in group:
        names = {
            mine: Index.of(own)
            for mine, own in zip(statement.free, first.free, strict=True)
            if mine != own
        }
        bodies.append(substitute(statement.body, names) if names else statement.body)
    body = bodies[0]
    for other in bodies[1:]:
        match other:
            case Apply("neg", (inner,)):
                body = Apply("sub", (body, inner))
            case _:
                body = (
                    Apply("add", (*body.args, other))
                    if (isinstance(body, Apply) and body.op == "add")
                    else Apply("add", (body, other))
                )
    return replace(first, body=body, accumulate=accumulate)
