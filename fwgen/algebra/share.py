"""Equal statements made once, copies and dead statements removed, loop-invariant factors taken out.

Every pass maps a step to an equivalent step. The output and the states' new arrays keep their
names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from fwgen.algebra.canonical import key_of
from fwgen.algebra.sink import Sink
from fwgen.ir.nodes import Apply, Array, Load, Scalar, Statement, Step
from fwgen.ir.ops import OPS
from fwgen.ir.walk import reads, rename, scalars, variables

CHEAP = frozenset({"add", "mul", "sub", "neg", "square", "abs", "sign", "relu"})
CHEAP |= {"select", "maximum", "minimum", "clamp", "stop_gradient"}


def tidied(step: Step, generated: Iterable[str] = ()) -> Step:
    """All passes, then dead statements removed. `generated` arrays may lose their names."""
    return without_dead(without_copies(shared(invariants_out(without_copies(step, generated)))))


def protected(step: Step) -> frozenset[str]:
    """The arrays that the outside knows by name."""
    return frozenset({step.output, *(state.new for state in step.states)})


def _dims(step: Step) -> dict[str, Array]:
    return {array.name: array for array in step.arrays}


def without_copies(step: Step, generated: Iterable[str] = ()) -> Step:
    """`b[i] = a[i]`: readers of b read a. Where `a` is a generated name it takes the name of b."""
    arrays, keep, free = _dims(step), protected(step), set(generated)
    count = Counter(statement.target for statement in step.statements)
    names: dict[str, str] = {}
    backward: dict[str, str] = {}
    for statement in step.statements:
        body, target = statement.body, statement.target
        whole = isinstance(body, Load) and body.index == statement.index and count[target] == 1
        if not whole or statement.over or any(i.variable is None for i in statement.index):
            continue
        assert isinstance(body, Load)
        source = names.get(body.array, body.array)
        if arrays[source].dims != arrays[target].dims:
            continue
        if source in free and source not in backward and source not in keep:
            backward[source] = target
        elif target not in keep:
            names[target] = source
    final = {name: backward.get(source, source) for name, source in names.items()} | backward
    statements = []
    for statement in step.statements:
        changed = rename(replace(statement, target=""), final)
        target = statement.target
        changed = replace(changed, target=backward.get(target, target))
        if target not in names and changed.body != Load(changed.target, changed.index):
            statements.append(changed)
    return replace(step, statements=tuple(statements))


def shared(step: Step) -> Step:
    """Arrays that are defined by equal statements become one; protected ones stay."""
    keep = protected(step)
    left = Counter(statement.target for statement in step.statements)
    parts: dict[str, list[object]] = {}
    pending: dict[str, list[Statement]] = {}
    known: dict[object, str] = {}
    names: dict[str, str] = {}
    statements: list[Statement] = []
    for old in step.statements:
        statement = rename(old, names)
        target = statement.target
        parts.setdefault(target, []).append(_statement_key(statement))
        pending.setdefault(target, []).append(statement)
        left[target] -= 1
        if left[target]:
            continue
        key = (step.array(target).dims, tuple(parts[target]))
        twin = known.setdefault(key, target)
        if twin == target or target in keep:
            statements.extend(pending[target])
        else:
            names[target] = twin
    return replace(step, statements=tuple(statements))


def _statement_key(statement: Statement) -> object:
    axes = (*statement.free, *statement.over)
    shape = tuple(
        (tuple(str(c) for c, _ in index.terms), str(index.offset), str(index.modulo))
        for index in statement.index
    )
    return (shape, len(statement.over), statement.reduce, key_of(statement.body, axes))


def invariants_out(step: Step) -> Step:
    """Costly sub-expressions over fewer variables than their statement become arrays.

    The branches of `select` are left alone: the branch that is not taken must not be evaluated
    outside, where its derivative could be infinite.
    """
    sink = Sink(step.arrays)
    for statement in step.statements:
        own = set(statement.free) | set(statement.over)
        body = _lifted(statement.body, len(own), sink, statement) if own else statement.body
        sink.add(replace(statement, body=body))
    arrays = tuple(sink.arrays.values())
    return replace(step, arrays=arrays, statements=tuple(sink.statements))


def _lifted(expression: Scalar, count: int, sink: Sink, statement: Statement) -> Scalar:
    if not isinstance(expression, Apply) or OPS[expression.op].kind in ("bool", "int"):
        return expression
    axes = variables(expression)
    if len(axes) < min(count, 2) and _costly(expression):
        return sink.define("a", axes, expression, statement.line)
    if expression.op == "select":
        return expression
    args = tuple(_lifted(argument, count, sink, statement) for argument in expression.args)
    return Apply(expression.op, args)


def _costly(expression: Scalar) -> bool:
    """Whether an expression is real-valued and takes more than additions and products."""
    return any(
        isinstance(node, Apply) and node.op not in CHEAP and OPS[node.op].kind == "real"
        for node in scalars(expression)
    )


def without_dead(step: Step) -> Step:
    """Only what the output and the new states need; inputs, params, buffers and states stay."""
    alive = set(protected(step))
    kept: list[Statement] = []
    for statement in reversed(step.statements):
        if statement.target in alive:
            kept.append(statement)
            alive.update(reads(statement))
    arrays = tuple(a for a in step.arrays if a.role != "local" or a.name in alive)
    return replace(step, arrays=arrays, statements=tuple(reversed(kept)))


def ordered(step: Step) -> Step:
    """Everything that needs no new state first, then the states that can be updated, and so on."""
    writers: dict[str, list[int]] = {}
    for number, statement in enumerate(step.statements):
        writers.setdefault(statement.target, []).append(number)
    new = {state.new for state in step.states if len(step.array(state.new).dims) > 1}
    waiting = dict(enumerate(step.statements))
    done: list[Statement] = []
    while waiting:
        ready: list[int] = []
        for number, statement in waiting.items():
            needs = {w for name in reads(statement) for w in writers.get(name, ())}
            if statement.target not in new and not (needs & waiting.keys()) - set(ready):
                ready.append(number)
        if not ready:
            for number, statement in waiting.items():
                needs = {w for name in reads(statement) for w in writers.get(name, ())}
                if statement.target in new and not needs & waiting.keys():
                    ready.append(number)
        for number in ready:
            done.append(waiting.pop(number))
    return replace(step, statements=tuple(done))
