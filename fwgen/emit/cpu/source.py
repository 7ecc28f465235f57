"""The C++ source of a rule: both kernels, rendered from a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fwgen.emit.cpu.kernel import KernelWriter
from fwgen.emit.cpu.names import Names
from fwgen.emit.cpu.views import KernelView
from fwgen.emit.render import read_template, render
from fwgen.ir.dims import ONE, Dim
from fwgen.ir.nodes import Array, Step
from fwgen.ir.text import statement_text
from fwgen.runtime.signature import Saved
from fwgen.schedule.plan import CpuPlan


def cpu_source(plan: CpuPlan, signature: Step, dims: Sequence[str]) -> str:
    """Render the kernels of a plan.

    `signature` is the step whose tensors a call passes, in its order of declaration; `dims` are the
    free dims in the order of the call.
    """
    names = Names()
    for dim in dims:
        names.of(("dim", dim), f"n_{dim}")
    initial = {f"state {s.name}": s.init or 0.0 for s in signature.states}
    forward = KernelWriter(plan.forward_kernel, forward_tensors(plan, signature), names, initial)
    backward = KernelWriter(plan.backward_kernel, backward_tensors(plan, signature), names, initial)
    kernels = [forward.write(), backward.write()]
    return render(
        "cpu/kernels.cpp.jinja",
        equations=[statement_text(s) for s in plan.step.statements],
        kernels=kernels,
        dims=[names.of(("dim", dim), f"n_{dim}") for dim in dims],
        chunk=plan.chunk,
        vectors=read_template("cpu/vector.hpp"),
        memory=read_template("cpu/memory.hpp"),
        checkpoints=checkpoints(plan, signature, kernels[0]),
    )


def _given(signature: Step) -> list[str]:
    """Tensors that both kernels get first."""
    roles = ("input", "param", "buffer")
    names = [f"{r} {a.name}" for r in roles for a in signature.arrays if a.role == r]
    return [*names, *(f"state {s.name}" for s in signature.states)]


def _kept(plan: CpuPlan, signature: Step) -> list[str]:
    if plan.replay:
        return [f"checkpoint {s.name}" for s in signature.states]
    return [f"saved {name}" for name in plan.saved]


def forward_tensors(plan: CpuPlan, signature: Step) -> Mapping[str, int]:
    """Slot of each tensor of a forward call."""
    finals = [f"final {s.name}" for s in signature.states]
    order = [*_given(signature), "y", *finals, *_kept(plan, signature)]
    return {name: number for number, name in enumerate(order)}


def backward_tensors(plan: CpuPlan, signature: Step) -> Mapping[str, int]:
    """Slot of each tensor of a backward call."""
    roles = ("input", "param")
    order = [*_given(signature), *_kept(plan, signature), "grad_y"]
    order += [f"grad_final {s.name}" for s in signature.states]
    order += [f"grad {a.name}" for r in roles for a in signature.arrays if a.role == r]
    order += [f"grad_state {s.name}" for s in signature.states]
    return {name: number for number, name in enumerate(order)}


def saved_tensors(plan: CpuPlan) -> tuple[Saved, ...]:
    """What the forward keeps: token values, or every state at each chunk's start."""
    arrays = {a.name: a for a in plan.step.arrays}
    if not plan.replay:
        return tuple(
            Saved(name, "token", tuple(dim.terms for dim in arrays[name].dims))
            for name in plan.saved
        )
    return tuple(
        Saved(s.name, "checkpoint", (_reals(arrays[s.old]).terms,), plan.chunk)
        for s in plan.step.states
    )


def _reals(array: Array) -> Dim:
    """Room for a state in any layout: one axis may be padded by less than 16 elements.

    A matrix has columns that are 8 vectors longer than its rows (`fw::column`). Where the first
    axis is a multiple of 16, so is the room: blocks of the axis have equal parts of it.
    """
    if not array.dims:
        return ONE
    if len(array.dims) == 2:
        return (array.dims[0] + 16) * (array.dims[1] + 8)
    total = array.dims[-1] + 16
    for dim in array.dims[:-1]:
        total = total * dim
    return total


def checkpoints(plan: CpuPlan, signature: Step, forward: KernelView) -> list[tuple[int, str, str]]:
    """(tensor, pointer, reals) of the states that the forward keeps at every chunk's start."""
    if not plan.replay:
        return []
    slots = forward_tensors(plan, signature)
    carries = forward.sweeps[0].carries
    return [
        (slots[f"checkpoint {s.name}"], c.transfer.base, c.transfer.extent)
        for s, c in zip(signature.states, carries, strict=True)
    ]
