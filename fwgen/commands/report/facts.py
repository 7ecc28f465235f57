"""Facts about a compiled rule that every format of the report shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fwgen.driver import Compilation
from fwgen.emit.costs import FLOAT, elements
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Statement, Step
from fwgen.ir.walk import reads
from fwgen.language import lower, reread
from fwgen.schedule.plan import statements_of

if TYPE_CHECKING:
    from fwgen.algebra.classes import Transition

NO_KERNELS = "the class of the update allows it, but no kernels are generated for it yet"
SAMPLE = 64
"""The size of all named dims at which costs are also given as numbers."""


def class_text(transition: Transition) -> str:
    """The class with its rank, axis and, if it was given a reason, why."""
    text: str = transition.kind
    if transition.rank and "low rank" in text:
        text += f" (rank {transition.rank})"
    if transition.axis and "decay" in text:
        text += f", decay along the {transition.axis} axis"
    elif transition.axis:
        text += f", along the {transition.axis} axis"
    if transition.reason:
        text += f"; {transition.reason}"
        text += f" (line {transition.line})" if transition.line else ""
    return text


def as_printed(compilation: Compilation) -> Compilation:
    """With the lines of the rule as documents print it, whatever file it came from."""
    printed = lower(reread(compilation.rule)).statements
    pairs = zip(compilation.step.statements, printed, strict=True)
    lines = {statement.line: other.line for statement, other in pairs}
    normal = compilation.normal
    moved = tuple(replace(t, line=lines.get(t.line, 0)) for t in normal.transitions)
    chunk_line = lines.get(normal.chunk_line or 0)
    return replace(compilation, normal=replace(normal, transitions=moved, chunk_line=chunk_line))


def chunk_reason(compilation: Compilation) -> str | None:
    """Why there is no chunk form, None where there is one."""
    if "chunk" in compilation.signature.forms:
        return None
    return compilation.normal.chunk_reason or compilation.signature.chunk_reason or NO_KERNELS


def chunk_text(compilation: Compilation) -> str:
    """Whether there is a chunk form, and what stands in its way."""
    reason, line = chunk_reason(compilation), compilation.normal.chunk_line
    if reason is None:
        return "legal"
    if compilation.normal.chunk_reason is None:
        return f"not yet: {reason}"
    return f"illegal: {reason}" + (f" (line {line})" if line else "")


def values_of_backward(compilation: Compilation) -> list[Statement]:
    """Definitions of what the backward reads and the forward's equations do not name."""
    backward = compilation.backward
    wanted = {name for s in backward.statements for name in reads(s)}
    named = {array.name for array in compilation.step.arrays}
    return _definitions(backward.forward, wanted - named, named)


def kept_values(compilation: Compilation) -> list[Statement]:
    """The definitions of what the CPU kernels keep of every token."""
    kept = {e.name for e in compilation.signature.saved if e.kind == "token"}
    named = {a.name for a in compilation.step.arrays}
    named |= {s.target for s in values_of_backward(compilation)}
    return _definitions(compilation.plan.step, kept, named)


def _definitions(step: Step, wanted: set[str], named: set[str]) -> list[Statement]:
    """The statements that define arrays, and what these read that is not named elsewhere."""
    found: list[Statement] = []
    for statement in reversed(step.statements):
        if statement.target in wanted:
            found.append(statement)
            wanted = wanted | (set(reads(statement)) - named)
    return found[::-1]


def recomputed(compilation: Compilation) -> list[Statement]:
    """What the backward kernels on the CPU compute again of the forward, each once."""
    plan = compilation.plan
    phases = [phase for sweep in plan.backward_kernel.sweeps for phase in sweep.phases]
    made = {s.target for phase in phases for s in statements_of(phase)}
    return [s for s in plan.step.statements if s.target in made]


def replay_reason(compilation: Compilation) -> str:
    """Why the CPU kernels keep states, in names that the reader knows."""
    reason = compilation.plan.reason or ""
    known = {array.name for array in compilation.step.arrays}
    start = "the gradient of "
    named = reason.removeprefix(start).split(" ")[0]
    if not reason.startswith(start):
        return reason if named in known else "a matrix would have to be kept for every token"
    whose = start + named if named in known else "a gradient"
    return f"{whose} needs a state and that state's gradient at the same token"


def kept_per_token(compilation: Compilation) -> Dim:
    """Bytes in float32 that the CPU kernels keep of every token, checkpoints left out."""
    total = Dim()
    for entry in compilation.signature.saved:
        if entry.kind == "token":
            total = total + elements(Dim(tuple(poly)) for poly in entry.dims) * FLOAT
    return total


def interval(compilation: Compilation) -> int | None:
    """Tokens between two checkpoints of the CPU kernels, None where they keep none."""
    kinds = (e.interval for e in compilation.signature.saved if e.kind == "checkpoint")
    return next(iter(kinds), None)


def sample(compilation: Compilation) -> dict[str, int]:
    """`SAMPLE` for every size that a call is free to choose."""
    return dict.fromkeys(compilation.signature.free_dims, SAMPLE)
