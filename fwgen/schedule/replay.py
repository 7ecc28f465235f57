"""The backward of any rule: states restored from checkpoints, chunk by chunk, last chunk first."""

from __future__ import annotations

from collections.abc import Sequence

from fwgen.ir.carries import Carry
from fwgen.ir.nodes import Statement, Step
from fwgen.ir.walk import reads
from fwgen.schedule.adjoint import Adjoint, merged, param_gradients
from fwgen.schedule.graph import dependents, needed
from fwgen.schedule.phases import phases
from fwgen.schedule.plan import Kernel, Sweep


def replay_kernel(step: Step, adjoint: Adjoint) -> Kernel:
    """One reverse sweep: in every chunk a forward scan from its checkpoint, then the reverse scan.

    The forward scan keeps the matrices of all tokens of the chunk; narrow values have their rows
    anyway. Matrices that are no states are computed again where the reverse scan reads them.
    """
    arrays = (*step.arrays, *adjoint.arrays)
    by_name = {a.name: a for a in arrays}
    heads = {array for n, array in adjoint.gradients if by_name[n].role == "param"}
    uses = {name for s in adjoint.statements for name in reads(s)}
    replay = tuple(Carry(s.old, s.new, f"checkpoint {s.name}") for s in step.states)
    forward = needed(step.statements, uses | {c.after for c in replay})
    first = phases(forward, replay, by_name, (), history=True)
    carries = tuple(
        Carry(seed, old, f"grad_final {name}", f"grad_state {name}")
        for name, seed, old in adjoint.carries
    )
    own = merged(
        adjoint.statements, {a.name: a.dims for a in adjoint.arrays if a.name not in heads}
    )
    moving = dependents(step.statements, {s.old for s in step.states})
    again = _matrices(step, own)
    gradients = {array: f"grad {name}" for name, array in adjoint.gradients}
    matrices = {name for s in (*forward, *again) for name in (s.target, *reads(s))}
    matrices &= {a.name for a in step.arrays if len(a.dims) > 1 and a.name in moving}
    second = phases(
        (*again, *own), carries, by_name, set(gradients), reverse=True, together=matrices
    )
    read = {name for s in (*forward, *own) for name in reads(s)}
    loads = [(n, f"input {n}") for n, a in by_name.items() if n in read and a.role == "input"]
    loads += [(adjoint.output_seed, "grad_y")] if adjoint.output_seed in read else []
    stores = tuple(
        (a, t) for a, t in gradients.items() if by_name[a].role != "param" and a not in heads
    )
    sweep = Sweep((*first, *second), True, tuple(loads), stores, (*replay, *carries))
    return Kernel("backward", arrays, (sweep,), param_gradients(step, adjoint))


def _matrices(step: Step, uses: Sequence[Statement]) -> tuple[Statement, ...]:
    """Statements that compute again the matrices, other than states, that `uses` read."""
    states = {name for s in step.states for name in (s.old, s.new)}
    wide = {a.name for a in step.arrays if len(a.dims) > 1 and a.role == "local"} - states
    again = [s for s in step.statements if s.target in wide]
    return needed(again, {name for s in uses for name in reads(s)})
