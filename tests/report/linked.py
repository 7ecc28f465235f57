"""Links carried out by linear algebra, to compare with the update that they were read off."""

from __future__ import annotations

import numpy as np

from fwgen.commands.report.motion import Factors, Link
from fwgen.ir.interpret import run_statement
from fwgen.ir.nodes import Index, Statement, Step, Var
from fwgen.ir.walk import variables

Arrays = dict[str, np.ndarray]


def value(
    step: Step, factors: Factors, axes: tuple[Var, ...], arrays: Arrays, sizes: dict[str, int]
) -> np.ndarray:
    """The product of factors over all given axes."""
    result = np.ones(tuple(v.dim.evaluate(sizes) for v in axes))
    for factor in factors:
        own = tuple(v for v in axes if v in variables(factor))
        found = np.zeros(tuple(v.dim.evaluate(sizes) for v in own))
        statement = Statement("found", tuple(map(Index.of, own)), factor)
        run_statement(statement, {**arrays, "found": found}, sizes, 3)
        shape = [v.dim.evaluate(sizes) if v in own else 1 for v in axes]
        result = result * found.reshape(shape)
    return result


def moved(step: Step, link: Link, arrays: Arrays, sizes: dict[str, int]) -> np.ndarray:
    """What a link makes of the version before it, by linear algebra."""
    statement = next(s for s in step.statements if s.target == link.after)
    axes, old = statement.free, arrays[link.before]
    decay = [*link.scale, *(f for side in link.sides for f in side), *link.wide]
    total = (-1) ** link.negative * value(step, tuple(decay), axes, arrays, sizes) * old
    for erase in link.erases:
        axis = 0 if erase.value else 1
        here = (axes[axis],)
        scale = value(step, erase.scale, (), arrays, sizes)
        query = along(step, erase.query, here, arrays, sizes)
        write = value(step, erase.write, here, arrays, sizes)
        read = query @ old if erase.value else old @ query
        matrix = np.outer(write, read) if erase.value else np.outer(read, write)
        total = total + (-1) ** erase.negative * scale * matrix
    for write in link.writes:
        parts = (*write.scale, *(f for side in write.sides for f in side), *write.wide)
        total = total + (-1) ** write.negative * value(step, parts, axes, arrays, sizes)
    return total


def along(
    step: Step, factors: Factors, axis: tuple[Var, ...], arrays: Arrays, sizes: dict[str, int]
) -> np.ndarray:
    """A query, whose own variable may be called differently."""
    found = [v for f in factors for v in variables(f)]
    return value(step, factors, (found[0],) if found else axis, arrays, sizes)
