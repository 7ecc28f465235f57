"""Recurrent Triton kernels of a rule as the text of one module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fwgen.emit.render import render
from fwgen.emit.triton.functions import helper_texts
from fwgen.emit.triton.kernels import (
    Gradient,
    Recurrent,
    Tensor,
    Token,
    forward_token,
    recurrent,
    reverse_token,
)
from fwgen.emit.triton.module import Line, alive, words
from fwgen.emit.triton.text import size
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Backward, Step
from fwgen.ir.text import statement_text

LIMIT = 65536
"""Numbers of the largest block that a program may hold in registers."""
ROOMS = (2048, 1024)
"""Numbers of a matrix tile, forward and backward, that a warp per 512 works on without spilling."""


def triton_sources(step: Step, backward: Backward) -> dict[str, str]:
    """Generated files by name: `triton_recurrent.py`.

    Its functions `forward` and `backward` launch the kernels. Raises UnsupportedError for an index
    expression that cannot be inverted.
    """
    found = recurrent(step, backward)
    tokens = {
        "forward": forward_token(found, output=True),
        "replay": forward_token(found, output=False),
        "backward": reverse_token(found),
    }
    parts = {
        "forward": _kernel(found, "forward", tokens["forward"]),
        "step": _kernel(found, "step", tokens["forward"]),
        "backward": _kernel(found, "backward", tokens["backward"], tokens["replay"]),
    }
    module = found.module
    stages = {kind: part.stage for kind, part in parts.items()}
    text = render(
        "triton/recurrent.py.jinja",
        name=step.name,
        equations=_equations(step, backward),
        helpers=helper_texts(module.used),
        forward=parts["forward"].text,
        step=parts["step"].text,
        backward=parts["backward"].text,
        sizes=tuple(found.sizes.values()),
        size_keys=tuple(found.sizes),
        blocks=_blocks(found),
        work=[" * ".join(blocks) or "1" for blocks in module.work] or ["1"],
        limit=LIMIT,
        rooms=ROOMS,
        bound=_bound(found),
        tiles=_tiles(found),
        inputs=found.inputs,
        states=[_state(found, n) for n in range(len(found.states))],
        elements=found.elements,
        output_shape=_shape(found.step.array(step.output).dims),
        stages=stages,
        calls={kind: part.call for kind, part in parts.items()},
        results=_results(found),
    )
    return {"triton_recurrent.py": text}


@dataclass(frozen=True, slots=True)
class _Part:
    """A kernel's text, the values that its launch passes, and its scratch numbers per program."""

    text: str
    call: list[str]
    stage: str


def _equations(step: Step, backward: Backward) -> list[str]:
    lines = [f"    {statement_text(s)}" for s in step.statements]
    lines += [f"    next {s.old} = {s.new}" for s in step.states]
    lines += ["", "Adjoint of a token, last statement first:", ""]
    return ["One token:", "", *lines, *(f"    {statement_text(s)}" for s in backward.statements)]


def _kernel(found: Recurrent, kind: str, token: Token, replay: Token | None = None) -> _Part:
    """One kernel; index values and masks that nothing uses are left out."""
    stage = _larger(token.stage, replay.stage if replay else "")
    body = " ".join([*token.lines, *(replay.lines if replay else ())])
    registers = words(" ".join(token.lines)) | {found.output.name if found.output else ""}
    holes: dict[str, Any] = {
        "tiled": found.module.tiling is not None,
        "positional": found.positional,
        "states": found.states,
        "token": _both(token, replay),
        "registers": registers,
        "output": found.output,
        "elements": found.elements,
        "stage": stage,
        "gradients": found.gradients,
        "seeds": found.seeds,
    }
    if replay is not None:
        holes |= {"replay": replay, "replay_registers": words(" ".join(replay.lines))}
        holes["finished"] = _finished(found, token)
        holes["registers"] = registers | holes["replay_registers"]
    definitions = [Line(n, f"{n} = {text}") for n, text in found.module.lanes.definitions()]

    def text(lanes: Sequence[str], arguments: Sequence[str]) -> str:
        filled = {**holes, "lanes": lanes, "arguments": arguments}
        code = render(f"triton/recurrent_{kind}.py.jinja", k=filled).strip() + "\n"
        return re.sub(r"\n[ \n]*\n(?= )", "\n", code)

    bare = words(text((), ())) | words(body)
    lanes = alive(definitions, lambda: sorted(bare))
    used = bare | words(" ".join(lanes))
    pairs = _arguments(found, kind, bool(stage), token if replay is None else _both(token, replay))
    blocks = [b for b in _block_names(found) if b in used]
    arguments = [f"{name}," for name, _ in pairs] + [f"{b}: tl.constexpr," for b in blocks]
    call = [value for _, value in pairs] + [f"{b}=blocks.{b}" for b in blocks]
    return _Part(text(lanes, arguments), call, stage)


def _finished(found: Recurrent, token: Token) -> list[list[Gradient]]:
    """The gradients that are complete after so many lines of a token's code."""
    finished: list[list[Gradient]] = [[] for _ in range(len(token.lines) + 1)]
    for gradient in found.gradients:
        name = gradient.tensor.name
        if name:
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


def _arguments(found: Recurrent, kind: str, stage: bool, token: Token) -> list[tuple[str, str]]:
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
            names = ", ".join((s.initial, *s.strides))
            pairs.append((names, f"states[{n}], *state_strides(states[{n}])"))
        pairs.append((found.output.pointer if found.output else "y_ptr", "y"))
        pairs += [(s.final, f"finals[{n}]") for n, s in enumerate(found.states)]
        if kind == "forward":
            pairs.append(("saved_ptr", "saved"))
    if stage:
        pairs.append(("stage_ptr", "stage"))
    if kind != "step":
        pairs += [("cu_seqlens", "cu_seqlens"), ("T", "T"), ("interval", "interval(T) if T else 1")]
    if found.positional:
        pairs.append(("position", "position"))
    pairs += [("H", "H")] + [("tiles", "blocks.tiles")] * (found.module.tiling is not None)
    return pairs + [(name, name) for name in found.sizes.values()]


def _backward_arguments(found: Recurrent) -> list[tuple[str, str]]:
    pairs = [("saved_ptr", "saved")]
    pairs += [(s.tensor.pointer, "grad_y") for s in found.seeds if s.output]
    pairs += [(s.grad_final, f"grad_finals[{n}]") for n, s in enumerate(found.states)]
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
            }
        )
    return results


def _state(found: Recurrent, n: int) -> dict[str, object]:
    tensor = found.states[n].tensor
    dims = found.step.array(found.step.states[n].old).dims
    tiled = found.module.tiling is not None and not tensor.once
    return {"shape": _shape(dims), "elements": tensor.elements, "tiled": tiled}


def _shape(dims: tuple[Dim, ...]) -> str:
    return "".join(f", {size(d)}" for d in dims)


def _block_names(found: Recurrent) -> list[str]:
    return [lane.block for lane in found.module.lanes.known.values()]


def _blocks(found: Recurrent) -> list[dict[str, str]]:
    """Block lengths and how they follow from sizes; the tile last, it fits the others."""
    lanes = list(found.module.lanes.known.values())
    blocks = [
        {"name": lane.block, "value": f"triton.next_power_of_2({size(lane.dim)})"}
        for lane in lanes
        if not lane.tiled
    ]
    for lane in lanes:
        if lane.tiled:
            tiled = [work for work in found.module.work if lane.block in work]
            others = [" * ".join(b for b in work if b != lane.block) for work in tiled]
            beside = list(dict.fromkeys(o for o in others if o))
            widest = f"max({', '.join(beside)})" if len(beside) > 1 else "".join(beside) or "1"
            widest = f"({widest})" if widest[:3] != "max" and " " in widest else widest
            whole = f"triton.next_power_of_2({size(lane.dim)})"
            value = f"min({whole}, max(1, room // {widest}))"
            blocks.append({"name": lane.block, "value": value})
    return blocks


def _tiles(found: Recurrent) -> str:
    for lane in found.module.lanes.known.values():
        if lane.tiled:
            return f"triton.cdiv({size(lane.dim)}, {lane.block})"
    return "1"


def _bound(found: Recurrent) -> str:
    sizes = ", ".join(f"{old} = {{{new}}}" for old, new in found.sizes.items())
    return sizes or "a constant size"
