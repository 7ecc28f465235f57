"""The CPU plan of a rule: which backward applies, and both kernels."""

from __future__ import annotations

from collections.abc import Callable

from fwgen.ir.carries import Telescoped
from fwgen.ir.nodes import Backward
from fwgen.schedule.adjoint import adjoint
from fwgen.schedule.forward import forward_kernel
from fwgen.schedule.plan import CpuPlan
from fwgen.schedule.replay import replay_kernel
from fwgen.schedule.two_pass import split, two_pass_kernel

CHUNK, REPLAY_CHUNK = 32, 16


def cpu_plan(
    backward: Backward, telescoped: Callable[[Backward], tuple[Backward, Telescoped]]
) -> CpuPlan:
    """Two passes without checkpoints where the adjoint recurrence allows it, else replay.

    `backward` is that of a step in normal form with reads of old states; `telescoped` rewrites the
    gradients of its decays.
    """
    step = backward.forward
    rewritten, decays = telescoped(backward)
    closed = adjoint(rewritten)
    parts = split(step, closed)
    if isinstance(parts, str):
        plain = adjoint(backward)
        kernel = replay_kernel(step, plain)
        return CpuPlan(step, forward_kernel(step, ()), kernel, (), True, parts, REPLAY_CHUNK)
    kernel = two_pass_kernel(step, closed, parts, decays)
    return CpuPlan(step, forward_kernel(step, parts.saved), kernel, parts.saved, False, None, CHUNK)
