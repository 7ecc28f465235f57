"""The forward kernel: one sweep that computes the output and keeps what the backward asks for."""

from __future__ import annotations

from collections.abc import Collection

from fwgen.ir.carries import Carry
from fwgen.ir.nodes import Step
from fwgen.ir.walk import reads
from fwgen.schedule.graph import needed
from fwgen.schedule.pairs import pair_scans
from fwgen.schedule.phases import phases
from fwgen.schedule.plan import Kernel, Sweep


def state_carries(step: Step, finish: bool) -> tuple[Carry, ...]:
    """The states as carries of a walk forward in time; they start from the `state` tensors."""
    return tuple(
        Carry(s.old, s.new, f"state {s.name}", f"final {s.name}" if finish else "")
        for s in step.states
    )


def forward_kernel(step: Step, saved: Collection[str]) -> Kernel:
    """Outputs, final states and `saved` token arrays of a step."""
    wanted = [step.output, *saved, *(s.new for s in step.states)]
    statements = needed(step.statements, wanted)
    arrays = {a.name: a for a in step.arrays}
    used = {s.target for s in statements} | {n for s in statements for n in reads(s)}
    stored = {step.output, *saved}
    carries = state_carries(step, True)
    found, added = pair_scans(phases(statements, carries, arrays, stored), arrays)
    sweep = Sweep(
        found,
        False,
        tuple(
            (a.name, f"input {a.name}") for a in step.arrays if a.role == "input" and a.name in used
        ),
        ((step.output, "y"), *((name, f"saved {name}") for name in saved)),
        carries,
    )
    return Kernel("forward", (*step.arrays, *added), (sweep,))
