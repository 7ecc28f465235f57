"""How each array of a step depends on the states of one stage: not, affinely, or nonlinearly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fwgen.algebra.affine import factors
from fwgen.ir.nodes import Apply, Load, Scalar, Statement, Step
from fwgen.ir.ops import OPS
from fwgen.ir.walk import variables

Form = Literal["free", "state", "max", "read", "other"]
FREE_LEVEL, AFFINE_LEVEL, NONLINEAR_LEVEL = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Dependence:
    """Dependence of a value on the states of a stage.

    `form`: `state` is an element of the state plus something free; `max` a maximum of such; `read`
    a sum of free scalars times reads of `state`, all contracted over the same `axis`; `other`
    anything else of its level. `reason` says which term, at `line` of the rule (0: not known), no
    normal form has a place for, if there was one.
    """

    level: int = FREE_LEVEL
    form: Form = "free"
    state: str = ""
    axis: int | None = None
    reason: str = ""
    line: int = 0


FREE = Dependence()


class Dependences:
    """Dependence of every array of a step on the old values of the states `members`."""

    def __init__(self, step: Step, members: Sequence[str]) -> None:
        self.old = {state.old: state.name for state in step.states if state.name in members}
        self.rank = {state.name: len(step.array(state.old).dims) for state in step.states}
        self.arrays = {array.name: FREE for array in step.arrays}
        for name, state in self.old.items():
            self.arrays[name] = Dependence(AFFINE_LEVEL, "state", state)
        self.line = 0
        for statement in step.statements:
            self.line = statement.line
            found = self._statement(statement)
            self.arrays[statement.target] = self._sum([self.arrays[statement.target], found])
        self.line = 0

    def _statement(self, statement: Statement) -> Dependence:
        found = self.scalar(statement.body)
        if found.level == FREE_LEVEL or not statement.over:
            return found
        if statement.reduce != "sum":
            return self._top(found, f"takes the {statement.reduce} over {self._of(found)}", True)
        read = self._read(statement)
        if read is not None:
            return read
        _, items = factors(statement.body)
        matrix = any(len(variables(i)) > 1 for i in items if self.scalar(i).level == FREE_LEVEL)
        how = "multiplies {} by a matrix" if matrix else "sums over {}"
        return self._top(found, how.format(self._of(found)), False)

    def _read(self, statement: Statement) -> Dependence | None:
        """`sum_j W[i, j] x[j]` with x free; of a vector state, its versions in the token too."""
        _, items = factors(statement.body)
        bound = [item for item in items if self.scalar(item).level > FREE_LEVEL]
        free = [item for item in items if self.scalar(item).level == FREE_LEVEL]
        if len(bound) != 1 or not isinstance(bound[0], Load):
            return None
        axes = [index.variable for index in bound[0].index]
        summed = [n for n, axis in enumerate(axes) if axis in statement.over]
        inside = all(v in statement.over for item in free for v in variables(item))
        if len(summed) != 1 or len(statement.over) != 1 or None in axes or not inside:
            return None
        found = self.scalar(bound[0])
        vector = self.rank[found.state] == len(axes) == 1 and found.level == AFFINE_LEVEL
        if bound[0].array in self.old or (vector and found.form in ("state", "other")):
            return (
                None if found.reason else Dependence(AFFINE_LEVEL, "read", found.state, summed[0])
            )
        return None

    def scalar(self, expression: Scalar) -> Dependence:
        """Dependence of an expression."""
        match expression:
            case Load(array, index):
                found = self.arrays[array]
                if found.level == FREE_LEVEL or all(i.variable is not None for i in index):
                    return found
                return self._top(found, f"takes single elements of {self._of(found)}", False)
            case Apply("add" | "sub" | "neg" as op, args):
                return self._linear(op, [self.scalar(argument) for argument in args])
            case Apply("mul", args):
                return self._product(args)
            case Apply("div", (left, right)):
                return self._quotient(left, right)
            case Apply(op, args) if OPS[op].kind != "bool":
                return self._applied(op, args)
            case Apply(_, args):
                return self._sum([self.scalar(argument) for argument in args])
            case _:
                return FREE

    def _linear(self, op: str, parts: list[Dependence]) -> Dependence:
        turned = parts[1] if op == "sub" else parts[0] if op == "neg" else FREE
        if turned.form in ("state", "max"):
            parts = [replace(part, form="other") if part is turned else part for part in parts]
        return self._sum(parts)

    def _sum(self, parts: Sequence[Dependence]) -> Dependence:
        bound = [part for part in parts if part.level > FREE_LEVEL]
        if len(bound) <= 1:
            return bound[0] if bound else FREE
        worst = max(bound, key=lambda part: part.level)  # the first of the highest level
        if worst.level == NONLINEAR_LEVEL:
            return replace(worst, form="other")
        named = next((part for part in bound if part.reason), None)
        if named is not None:
            return replace(named, form="other")
        first = bound[0]
        if all((p.form, p.state, p.axis) == ("read", first.state, first.axis) for p in bound):
            return first
        states = sorted({part.state for part in bound})
        if len(states) > 1:
            return self._top(first, f"adds up reads of the states {' and '.join(states)}", False)
        return replace(first, form="other")

    def _product(self, args: Sequence[Scalar]) -> Dependence:
        parts = [self.scalar(argument) for argument in args]
        bound = [part for part in parts if part.level > FREE_LEVEL]
        if not bound:
            return FREE
        if len(bound) > 1:
            text = f"multiplies two values that depend on the state {bound[0].state}"
            return self._top(self._sum(bound), text, True)
        free = [a for a, part in zip(args, parts, strict=True) if part.level == FREE_LEVEL]
        own = next(a for a, part in zip(args, parts, strict=True) if part.level > FREE_LEVEL)
        return self._scaled(bound[0], own, free)

    def _scaled(self, found: Dependence, own: Scalar, free: Sequence[Scalar]) -> Dependence:
        """`own`, whose dependence is `found`, times free values."""
        if found.form != "read":
            return replace(found, form="other")
        axes = {v for item in free for v in variables(item)}
        if axes & set(variables(own)):
            matrix = any(len(variables(item)) > 1 for item in free)
            how = "by a matrix" if matrix else "by a vector, element by element"
            text = f"multiplies a read of the state {found.state} {how}"
            return self._top(found, text, False)
        return replace(found, form="other") if axes else found

    def _quotient(self, left: Scalar, right: Scalar) -> Dependence:
        over, under = self.scalar(left), self.scalar(right)
        if under.level > FREE_LEVEL:
            return self._top(under, f"divides by {self._of(under)}", True)
        return FREE if over.level == FREE_LEVEL else self._scaled(over, left, [right])

    def _applied(self, op: str, args: Sequence[Scalar]) -> Dependence:
        parts = [self.scalar(argument) for argument in args]
        bound = [part for part in parts if part.level > FREE_LEVEL]
        if not bound:
            return FREE
        if op == "stop_gradient":
            return self._top(bound[0], f"stops the gradient of {self._of(bound[0])}", False)
        if op == "select":
            text = f"where() selects {self._of(bound[0])}"
            return self._top(self._sum(bound), text, parts[0].level > FREE_LEVEL)
        found = self._top(self._sum(bound), self._nonlinear(op, args, parts), True)
        scan = op == "maximum" and all(part.form in ("state", "max") for part in bound)
        return replace(found, form="max") if scan else found

    def _nonlinear(self, op: str, args: Sequence[Scalar], parts: Sequence[Dependence]) -> str:
        position = next(n for n, part in enumerate(parts) if part.level > FREE_LEVEL)
        state, argument = parts[position].state, args[position]
        if isinstance(argument, Load) and parts[position].form == "state":
            return f"{op}({state}) applies a nonlinear function to the state {state}"
        return f"{op} is applied to a value that depends on the state {state}"

    @staticmethod
    def _of(found: Dependence) -> str:
        what = {"state": "", "read": "a read of "}.get(found.form, "a value that depends on ")
        return f"{what}the state {found.state}"

    def _top(self, found: Dependence, reason: str, nonlinear: bool) -> Dependence:
        """The value after the operation `reason`; what was offensive before stays the reason."""
        level = NONLINEAR_LEVEL if nonlinear else found.level
        if found.level == NONLINEAR_LEVEL or (found.reason and not nonlinear):
            return replace(found, form="other")
        return Dependence(level, "other", found.state, None, reason, self.line)
