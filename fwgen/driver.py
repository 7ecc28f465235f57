"""The stage list: a rule goes in, the texts of its kernels come out. One screen, top to bottom."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fwgen.ir.nodes import Backward, Step
from fwgen.ir.verify import verify
from fwgen.language import Rule, lower

if TYPE_CHECKING:
    from fwgen.algebra.normal import Normal
    from fwgen.runtime.signature import Signature
    from fwgen.schedule.plan import CpuPlan

TARGETS = ("cpu", "triton")


@dataclass(frozen=True)
class Compilation:
    """Everything that the stages made of one rule.

    `step` is the token as written, `normal` its classified form, `backward` the derived adjoint of
    the token with its invariants hoisted, `plan` the schedule of the CPU kernels, `signature` what
    the runtime must know, `sources` the generated files by name.
    """

    rule: Rule
    step: Step
    normal: Normal
    backward: Backward
    plan: CpuPlan
    signature: Signature
    sources: Mapping[str, str]


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for unused cycles, a tenth of the time of long rules, which finds none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_uncollected()
def compile_rule(
    rule: Rule,
    targets: Sequence[str] = TARGETS,
    constants: Mapping[str, float] | None = None,
    maps: Mapping[str, str] | None = None,
) -> Compilation:
    """Run every stage for the given targets; raises RuleError for what only lowering can find.

    `constants` and `maps`, which the rule was loaded with, are named at the head of every file.
    """
    # sympy is behind these imports: it is loaded when something is compiled, not before.
    from fwgen.algebra.backward import differentiate
    from fwgen.algebra.hoist import hoist
    from fwgen.algebra.normal import normalise
    from fwgen.algebra.old_reads import read_old_states
    from fwgen.algebra.telescope import telescope
    from fwgen.emit.cpu import cpu_source, saved_tensors
    from fwgen.emit.heading import compile_command, headed
    from fwgen.emit.reference import reference_source
    from fwgen.emit.signature import free_dims, signature_of
    from fwgen.emit.triton import triton_sources
    from fwgen.schedule.copies import part_states
    from fwgen.schedule.cpu import cpu_plan

    step = lower(rule)
    verify(step, "step")
    normal = normalise(step)
    backward = differentiate(hoist(step))
    verify(backward, "backward")
    early = part_states(hoist(read_old_states(normal.step)))
    verify(early, "old reads")
    normal_backward = differentiate(early)
    plan = cpu_plan(normal_backward, lambda adjoint: telescope(adjoint, normal.decays))
    backwards = (backward, normal_backward)
    signature = signature_of(rule.hash, step, normal, backwards, saved_tensors(plan))
    sources = {"reference.py": reference_source(step)}
    if "cpu" in targets:
        sources["cpu.cpp"] = cpu_source(plan, step, free_dims(step))
    if "triton" in targets:
        sources |= triton_sources(backward.forward, backward)
    command = compile_command(rule.name, constants, maps)
    sources = headed(sources, rule.name, rule.hash, command)
    return Compilation(rule, step, normal, backward, plan, signature, sources)
