"""Recurrent Triton kernels of a rule as the text of one module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fwgen.emit.render import render
from fwgen.emit.triton import code, large
from fwgen.emit.triton.functions import helper_texts
from fwgen.emit.triton.kernels import Gradient, Recurrent, Tensor, Token, recurrent
from fwgen.emit.triton.module import Line, alive, words
from fwgen.emit.triton.plan import plan_of
from fwgen.emit.triton.text import size
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Backward, Step
from fwgen.ir.text import statement_text


def triton_sources(step: Step, backward: Backward) -> dict[str, str]:
    """Generated files by name: `triton_recurrent.py`, and `triton_large.py` for large states.

    Their functions `forward` and `backward` launch the kernels; in the second file wide states lie
    in memory. Raises UnsupportedError for an index expression that cannot be inverted.
    """
    in_memory = recurrent(step, backward, large=True)
    found = {"triton_recurrent.py": _source(recurrent(step, backward), not in_memory.large)}
    if in_memory.large:
        found["triton_large.py"] = _source(in_memory, True)
    return found


def _source(found: Recurrent, last: bool) -> str:
    """The text of one module; no other one serves what the `last` refuses."""
    step, backward, module = found.step, found.backward, found.module
    writer = large if found.large else code
    tokens = {
        "forward": writer.forward_token(found, output=True),
        "replay": writer.forward_token(found, output=False),
        "backward": writer.reverse_token(found),
    }
    parts = {
        "forward": _kernel(found, "forward", tokens["forward"]),
        "step": _kernel(found, "step", tokens["forward"]),
        "backward": _kernel(found, "backward", tokens["backward"], tokens["replay"]),
    }
    return render(
        "triton/recurrent.py.jinja",
        name=step.name,
        equations=_equations(step, backward),
        helpers=helper_texts(module.used),
        forward=parts["forward"].text,
        step=parts["step"].text,
        backward=parts["backward"].text,
        sizes=tuple(found.sizes.values()),
        size_keys=tuple(found.sizes),
        plan=plan_of(found, tokens["forward"].lines, tokens["backward"].lines),
        last=last,
        tiled=module.tiling is not None,
        inputs=found.inputs,
        states=[_state(found, n) for n in range(len(found.states))],
        elements=found.elements,
        output_shape=_shape(step.array(step.output).dims),
        output_wide=step.output in module.wide,
        stages={kind: part.stage for kind, part in parts.items()},
        shared={kind: part.shared for kind, part in parts.items()},
        calls={kind: part.call for kind, part in parts.items()},
        results=_results(found),
        large=found.large,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A kernel's text, the values that its launch passes, and its scratch numbers per program."""

    text: str
    call: list[str]
    stage: str
    shared: str


def _equations(step: Step, backward: Backward) -> list[str]:
    lines = [f"    {statement_text(s)}" for s in step.statements]
    lines += [f"    next {s.old} = {s.new}" for s in step.states]
    lines += ["", "Adjoint of a token, last statement first:", ""]
    return ["One token:", "", *lines, *(f"    {statement_text(s)}" for s in backward.statements)]


def _kernel(found: Recurrent, kind: str, token: Token, replay: Token | None = None) -> _Part:
    """One kernel; index values and masks that nothing uses are left out."""
    stage = _larger(token.stage, replay.stage if replay else "")
    shared = _larger(token.shared, replay.shared if replay else "")
    copies = large.save_code(found) if kind == "forward" else ()
    copies = large.restore_code(found) if kind == "backward" else copies
    body = " ".join([*token.lines, *copies, *(replay.lines if replay else ())])
    registers = words(" ".join(token.lines)) | {found.output.name if found.output else ""}
    holes: dict[str, Any] = {
        "tiled": found.module.tiling is not None,
        "positional": found.positional,
        "held": [s for s in found.states if not s.wide],
        "stored": [s for s in found.states if s.wide],
        "save": copies,
        "restore": copies,
        "output_wide": found.step.output in found.module.wide,
        "output_gradient": found.output_gradient,
        "token": _both(token, replay),
        "registers": registers,
        "output": found.output,
        "elements": found.elements,
        "stage": stage,
        "shared": shared,
        "held_gradients": [g for g in found.gradients if not g.wide],
        "seeds": found.seeds,
    }
    if replay is not None:
        holes |= {"replay": replay, "replay_registers": words(" ".join(replay.lines))}
        holes["finished"] = _finished(found, token)
        holes["registers"] = registers | holes["replay_registers"]
    definitions = [Line(n, f"{n} = {text}") for n, text in found.module.lanes.definitions()]

    def text(lanes: Sequence[str], arguments: Sequence[str]) -> str:
        filled = {**holes, "lanes": lanes, "arguments": arguments}
        kernel = render(f"triton/recurrent_{kind}.py.jinja", k=filled).strip() + "\n"
        return re.sub(r"\n[ \n]*\n(?= )", "\n", kernel)

    bare = words(text((), ())) | words(body)
    lanes = alive(definitions, lambda: sorted(bare))
    used = bare | words(" ".join(lanes))
    pairs = _arguments(found, kind, _both(token, replay))
    pairs += [(f"{name}_ptr", name) for name in ("stage", "shared") if holes[name]]
    blocks = [lane.block for lane in found.module.lanes.known.values() if lane.block in used]
    constants = [name for name in found.sizes.values() if name in used]
    arguments = [f"{name}," for name, _ in pairs]
    arguments += [f"{name}: tl.constexpr," for name in (*constants, *blocks)]
    call = [value for _, value in pairs] + [f"{name}={name}" for name in constants]
    call += [f"{b}=blocks.{b}" for b in blocks]
    return _Part(text(lanes, arguments), call, stage, shared)


def _finished(found: Recurrent, token: Token) -> list[list[Gradient]]:
    """The gradients that are complete after so many lines of a token's code."""
    finished: list[list[Gradient]] = [[] for _ in range(len(token.lines) + 1)]
    for gradient in found.gradients:
        name = gradient.tensor.name
        if name and not gradient.wide:
            last = [n for n, line in enumerate(token.lines, 1) if line.split(" ", 1)[0] == name]
            finished[max(last, default=0)].append(gradient)
    return finished


def _both(token: Token, replay: Token | None) -> Token:
    if replay is None:
        return token
    inputs = tuple(dict.fromkeys((*token.inputs, *replay.inputs)))
    heads = tuple(dict.fromkeys((*token.heads, *replay.heads)))
    return Token(token.lines, inputs, heads, token.stage)


def _larger(a: str, b: str) -> str:
    if not a or not b or a == b:
        return a or b
    return f"max({a}, {b})"


def _arguments(found: Recurrent, kind: str, token: Token) -> list[tuple[str, str]]:
    """Arguments of a kernel with the values that the launch passes."""
    pairs: list[tuple[str, str]] = []
    for n, x in enumerate(found.inputs):
        if x in token.inputs:
            names = ", ".join((x.pointer, *x.strides))
            pairs.append((names, f"inputs[{n}], *strides(inputs[{n}], H)"))
    pairs += [(x.pointer, f"heads[{n}]") for n, x in enumerate(found.heads) if x in token.heads]
    if kind == "backward":
        pairs += _backward_arguments(found)
    else:
        for n, s in enumerate(found.states):
            if not s.wide or kind == "step":
                names = ", ".join((s.initial, *s.strides))
                pairs.append((names, f"states[{n}], *state_strides(states[{n}])"))
        pairs.append((found.output.pointer if found.output else "y_ptr", "y"))
        for n, s in enumerate(found.states):
            in_slots = s.wide and kind == "forward"
            pairs.append((s.slots, f"slots[{n}]") if in_slots else (s.final, f"finals[{n}]"))
        if kind == "forward":
            pairs.append(("saved_ptr", "saved"))
    if kind != "step":
        pairs += [("cu_seqlens", "cu_seqlens"), ("T", "T")]
        pairs.append(("shift", "shift(T)") if kind == "forward" else ("interval", "interval(T)"))
    if found.positional:
        pairs.append(("position", "position"))
    pairs += [("H", "H")] + [("tiles", "blocks.tiles")] * (found.module.tiling is not None)
    return pairs


def _backward_arguments(found: Recurrent) -> list[tuple[str, str]]:
    pairs = [("saved_ptr", "saved")]
    pairs += [(s.tensor.pointer, "grad_y") for s in found.seeds if s.output]
    if found.step.output in found.module.wide:
        pairs.append((found.output_gradient, "grad_y"))
    for n, s in enumerate(found.states):
        pairs.append((s.slots, f"slots[{n}]") if s.wide else (s.grad_final, f"grad_finals[{n}]"))
    pairs += [(s.replay, f"replay[{n}]") for n, s in enumerate(found.states)]
    slots = _slots(found)
    for g in found.gradients:
        if g.tensor.name:
            part = f"parts[{slots[g.source.name]}]"
            pairs.append((g.tensor.pointer, part))
            if g.tensor.once:
                pairs.append((f"{g.tensor.pointer}_tile", f"tile_stride({part})"))
    first = len(_differentiable(found))
    for n, s in enumerate(found.states):
        part = f"parts[{first + n}]"
        if s.wide:
            continue
        pairs.append((s.grad_initial, part))
        if s.tensor.once:
            pairs.append((f"{s.grad_initial}_tile", f"tile_stride({part})"))
    return pairs


def _differentiable(found: Recurrent) -> list[Tensor]:
    """Inputs and params: what `wanted` counts before the states."""
    params = {found.module.names[a.name] for a in found.step.arrays if a.role == "param"}
    return [*found.inputs, *(x for x in found.heads if x.name in params)]


def _slots(found: Recurrent) -> dict[str, int]:
    return {x.name: n for n, x in enumerate(_differentiable(found))}


def _results(found: Recurrent) -> list[dict[str, object]]:
    """What is allocated for each gradient and which leading axes are summed."""
    gradients: dict[str, Gradient] = {g.source.name: g for g in found.gradients}
    arrays = {found.module.names[a.name]: a for a in found.step.arrays}
    results: list[dict[str, object]] = []
    for x in _differentiable(found):
        gradient, token = gradients.get(x.name), x in found.inputs
        zero = gradient is None or not gradient.tensor.name
        results.append(
            {
                "partial": gradient is not None and gradient.tensor.once and not zero,
                "lead": "B, T, H" if token else "N, H",
                "shape": _shape(arrays[x.name].dims),
                "summed": not token,
                "zero": zero,
                "wide": gradient is not None and gradient.wide,
                "state": False,
            }
        )
    for state, carried in zip(found.step.states, found.states, strict=True):
        shape = _shape(found.step.array(state.old).dims)
        results.append(
            {
                "partial": carried.tensor.once,
                "lead": "N, H",
                "shape": shape,
                "summed": False,
                "zero": False,
                "wide": carried.wide,
                "state": True,
            }
        )
    return results


def _state(found: Recurrent, n: int) -> dict[str, object]:
    tensor, carried = found.states[n].tensor, found.states[n]
    dims = found.step.array(found.step.states[n].old).dims
    tiled = found.module.tiling is not None and not tensor.once
    return {
        "shape": _shape(dims),
        "elements": tensor.elements,
        "tiled": tiled,
        "once": tensor.once,
        "wide": carried.wide,
        "value": carried.value,
        "number": n,
    }


def _shape(dims: tuple[Dim, ...]) -> str:
    return "".join(f", {size(d)}" for d in dims)
