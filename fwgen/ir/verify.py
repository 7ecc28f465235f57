"""What a legal step or backward is; `verify` runs between passes and blames the statement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fwgen.errors import InternalError
from fwgen.ir.dims import ONE, Dim
from fwgen.ir.nodes import (
    Apply,
    Array,
    Backward,
    Index,
    Load,
    Scalar,
    Statement,
    Step,
)
from fwgen.ir.ops import OPS
from fwgen.ir.text import statement_text
from fwgen.ir.walk import scalars, variables

Interval = tuple[Dim, Dim]
"""First position and extent along one axis."""


def verify(ir: Step | Backward, stage: str) -> None:
    """Check names, ranks, variables, bounds, kinds and single assignment.

    Raises InternalError naming `stage` and showing the offending statement.
    """
    _Checker(stage).check(ir)


def never_negative(dim: Dim) -> bool:
    """Whether a size is at least zero for all sizes of its names of one or more (sufficient)."""
    shifted = dim.substitute({name: Dim.of(name) + 1 for name in dim.names})
    return all(coefficient >= 0 for _, coefficient in shifted.terms)


def interval(index: Index) -> Interval | None:
    """The positions that an index without modulo and with positive coefficients can take."""
    if index.modulo is not None:
        return None
    extent = ONE
    for coefficient, var in index.terms:
        if not never_negative(coefficient):
            return None
        extent = extent + coefficient * (var.dim - 1)
    return index.offset, extent


def disjoint(a: tuple[Index, ...], b: tuple[Index, ...]) -> bool:
    """Whether two regions of one array provably have no element in common."""
    for first, second in zip(a, b, strict=True):
        left, right = interval(first), interval(second)
        if left is None or right is None:
            continue
        if never_negative(right[0] - left[0] - left[1]):
            return True
        if never_negative(left[0] - right[0] - right[1]):
            return True
    return False


def adjacent(one: tuple[Index, ...], other: tuple[Index, ...]) -> frozenset[int]:
    """The axes along which a region begins where another one ends."""
    found = set()
    for axis, (left, right) in enumerate(zip(one, other, strict=True)):
        before, after = interval(left), interval(right)
        if before is not None and after is not None and before[0] + before[1] == after[0]:
            found.add(axis)
    return frozenset(found)


class _Checker:
    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.statement: Statement | None = None
        self.arrays: dict[str, Array] = {}
        self.written: dict[str, list[tuple[Index, ...]]] = {}
        self.rows: dict[str, frozenset[int]] = {}
        """Axes along which all regions of an array that was written follow each other."""

    def fail(self, message: str) -> None:
        where = f": {statement_text(self.statement)}" if self.statement else ""
        line = f" (line {self.statement.line})" if self.statement and self.statement.line else ""
        raise InternalError(
            f"internal fault of fwgen after stage {self.stage!r}: {message}{where}{line}; "
            "please report it with the rule file"
        )

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            self.fail(message)

    def check(self, ir: Step | Backward) -> None:
        step = ir.forward if isinstance(ir, Backward) else ir
        self.declare(step.arrays)
        for statement in step.statements:
            self.check_statement(statement, accumulate=False)
        self.statement = None
        self.check_step(step)
        if isinstance(ir, Backward):
            self.check_backward(ir)

    def declare(self, arrays: Iterable[Array]) -> None:
        for array in arrays:
            self.require(array.name not in self.arrays, f"array {array.name} is declared twice")
            self.arrays[array.name] = array

    def check_step(self, step: Step) -> None:
        olds = [state.old for state in step.states]
        declared = sorted(a.name for a in step.arrays if a.role == "state")
        self.require(sorted(olds) == declared, "states and state arrays differ")
        for state in step.states:
            self.require(state.new in self.written, f"state {state.name} is never written")
            same = self.arrays[state.new].dims == self.arrays[state.old].dims
            self.require(same, f"state {state.name} changes its shape")
        self.require(step.output in self.arrays, f"output {step.output} is not declared")
        for array in step.arrays:
            self.require(array.role != "seed", f"seed {array.name} in a step")
            if array.role == "local":
                self.check_covered(array)

    def check_covered(self, array: Array) -> None:
        """The disjoint regions of an array make up the whole of it."""
        total, size = Dim(), ONE
        for dim in array.dims:
            size = size * dim
        for index in self.written.get(array.name, []):
            region = ONE
            for entry in index:
                for _, var in entry.terms:
                    region = region * var.dim
            total = total + region
        message = f"{array.name} has {size} elements, {total} are written"
        self.require(total == size, message)

    def check_backward(self, backward: Backward) -> None:
        self.declare(backward.arrays)
        step = backward.forward
        self.written = {}
        local = {a.name for a in backward.arrays}
        for statement in backward.statements:
            self.statement = statement
            self.require(statement.target in local, "target is not an adjoint")
            self.check_statement(statement, accumulate=True)
        self.statement = None
        incoming = {step.output, *(state.new for state in step.states)}
        self.require({name for name, _ in backward.seeds} == incoming, "seeds are incomplete")
        for pairs in (backward.seeds, backward.results):
            for name, adjoint in pairs:
                if adjoint is not None:
                    same = self.arrays[name].dims == self.arrays[adjoint].dims
                    self.require(same, f"adjoint of {name} has another shape")
        wanted = [a.name for a in step.arrays if differentiable_root(a)]
        self.require(sorted(n for n, _ in backward.results) == sorted(wanted), "results differ")

    def check_statement(self, statement: Statement, accumulate: bool) -> None:
        self.statement = statement
        array = self.arrays.get(statement.target)
        if array is None:
            return self.fail(f"{statement.target} is not declared")
        self.require(statement.accumulate == accumulate, "accumulate does not fit the stage")
        roles = ("local", "seed") if accumulate else ("local",)
        self.require(array.role in roles, f"{array.role} {array.name} is assigned")
        self.require(len(statement.index) == len(array.dims), "rank of the target")
        self.check_variables(statement)
        for index, dim in zip(statement.index, array.dims, strict=True):
            self.check_bounds(index, dim)
        self.check_body(statement.body)
        if not accumulate:
            self.check_region(array.name, statement.index)
        self.written.setdefault(array.name, []).append(statement.index)

    def check_region(self, name: str, region: tuple[Index, ...]) -> None:
        """Reject a region that may overlap those written before: they follow each other along one
        axis (sizes are at least 1), as the parts of a `concat` do, or are apart pair by pair."""
        others = self.written.get(name, [])
        if others:
            axes = self.rows.get(name, frozenset(range(len(region))))
            self.rows[name] = axes & adjacent(others[-1], region)
        apart = bool(self.rows.get(name)) or all(disjoint(other, region) for other in others)
        self.require(apart, "a region is assigned twice")

    def check_variables(self, statement: Statement) -> None:
        own = [*statement.free, *statement.over]
        repeated = [name for name, n in Counter(var.name for var in own).items() if n > 1]
        self.require(not repeated, f"variable {', '.join(repeated)} occurs twice")
        self.require(bool(statement.over) == (statement.reduce is not None), "reduce without over")
        if statement.accumulate:
            self.require(statement.reduce in (None, "sum"), "accumulated maximum")
        known = {var.name: var for var in own}
        for var in variables(statement.body):
            self.require(known.get(var.name) == var, f"variable {var.name} is not bound")

    def check_bounds(self, index: Index, dim: Dim) -> None:
        """Reject what is out of bounds for all sizes; the rest is checked at the call."""
        plain = index.variable
        if plain is not None and plain.dim == dim:
            return None
        if index.modulo is not None:
            beyond = index.modulo - dim
            return self.require(not never_negative(beyond - 1), "modulo exceeds the axis")
        span = interval(index)
        if span is not None:
            first, extent = span
            self.require(not never_negative(-first - 1), "index is negative")
            beyond = first + extent - dim
            self.require(not never_negative(beyond - 1), "index is out of bounds")
        return None

    def check_body(self, body: Scalar) -> None:
        for node in scalars(body):
            if isinstance(node, Load):
                self.check_load(node)
            elif isinstance(node, Apply):
                self.check_apply(node)
        self.require(not _is_bool(body), "a condition is stored")

    def check_load(self, load: Load) -> None:
        array = self.arrays.get(load.array)
        if array is None:
            return self.fail(f"{load.array} is not declared")
        self.require(len(load.index) == len(array.dims), f"rank of {load.array}")
        if array.role == "local" and not self.statement_accumulates():
            self.require(load.array in self.written, f"{load.array} is read before it is written")
        for index, dim in zip(load.index, array.dims, strict=True):
            self.check_bounds(index, dim)
        return None

    def statement_accumulates(self) -> bool:
        return self.statement is not None and self.statement.accumulate

    def check_apply(self, node: Apply) -> None:
        op = OPS.get(node.op)
        if op is None:
            return self.fail(f"operation {node.op} does not exist")
        count = len(node.args)
        fits = count >= 2 if op.arity is None else count == op.arity
        self.require(fits, f"{node.op} with {count} arguments")
        for position, argument in enumerate(node.args):
            condition = node.op in ("and", "or", "not") or (node.op == "select" and position == 0)
            self.require(_is_bool(argument) == condition, f"condition and number in {node.op}")
        return None


def _is_bool(expression: Scalar) -> bool:
    return isinstance(expression, Apply) and OPS[expression.op].kind == "bool"


def differentiable_root(array: Array) -> bool:
    """Whether gradients are owed for this array: a floating input, a param or a state."""
    return array.role in ("param", "state") or (array.role == "input" and array.floating)
