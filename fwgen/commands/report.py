"""What `fwgen explain` says about a rule, printed as text, Markdown, LaTeX or JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fwgen.driver import Compilation
from fwgen.emit.costs import bytes_backward, bytes_forward, flops, state_elements
from fwgen.emit.latex import statement_latex
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Backward, Statement, Step
from fwgen.ir.text import statement_text

if TYPE_CHECKING:
    from fwgen.algebra.classes import Transition

NOT_YET = "allowed by the class of the update, but not available yet"
NO_KERNELS = "kernels of the chunk form are not generated yet"
_LOW_RANK = (
    "{state}: the token multiplies the state by {decay}I - beta k k^T or a relative of it. Where "
    "the erased and the written key are one, it does not stretch the state while "
    "beta * |k|^2 <= 2{also}; beyond that the rule itself diverges, in every form."
)
_STABILITY = {
    "identity": "{state}: nothing is forgotten, so the state grows with the number of tokens; "
    "normalise the read if that matters.",
    "scalar decay": "{state}: stays bounded while the decay is at most 1 in size.",
    "diagonal decay": "{state}: stays bounded while every decay is at most 1 in size.",
    "elementwise decay": "{state}: stays bounded while every decay is at most 1 in size.",
    "identity plus low rank": _LOW_RANK.format(state="{state}", decay="", also=""),
    "scalar decay plus low rank": _LOW_RANK.format(
        state="{state}", decay="decay times ", also=" and the decay is at most 1"
    ),
    "diagonal plus low rank": _LOW_RANK.format(
        state="{state}", decay="diagonal decay with ", also=" and every decay is at most 1"
    ),
    "affine": "{state}: affine in the state, but of no class with a known bound.",
    "running max": "{state}: a running maximum; it keeps exponents in range and cannot overflow.",
    "nonlinear": "{state}: nonlinear in the state; no general bound. Gradients pass through the "
    "derivative of every token's nonlinearity.",
}


@dataclass(frozen=True)
class Section:
    """A titled part of the report: prose or equations (with their LaTeX)."""

    title: str
    lines: tuple[str, ...]
    equations: tuple[Statement, ...] = ()


def sections(compilation: Compilation) -> list[Section]:
    """The whole report, in reading order."""
    step, backward = compilation.step, compilation.backward
    return [
        Section("Forward", _header(step), step.statements),
        Section("States", tuple(_state_lines(compilation))),
        Section("Forms", tuple(_form_lines(compilation))),
        Section("Backward", tuple(_backward_lines(backward)), backward.statements),
        Section("Values that the backward uses", (), backward.forward.statements),
        Section("Costs per token and head", tuple(_cost_lines(compilation))),
        Section("Kept for the backward", tuple(_saved_lines(compilation))),
        Section("Stability", tuple(_stability(t) for t in compilation.normal.transitions)),
    ]


def _header(step: Step) -> tuple[str, ...]:
    lines = []
    for role, title in (("input", "inputs"), ("param", "params"), ("buffer", "buffers")):
        group = [f"{a.name}{_shape(a.dims)}" for a in step.arrays if a.role == role]
        if group:
            lines.append(f"{title}: {', '.join(group)}")
    if step.dims:
        lines.append("sizes: " + ", ".join(f"{name} = {dim}" for name, dim in step.dims))
    lines += [f"next token's {s.old}: {s.new}" for s in step.states]
    return (*lines, f"output: {step.output}")


def _shape(dims: Iterable[Dim]) -> str:
    text = ", ".join(map(str, dims))
    return f"[{text}]" if text else ""


def _state_lines(compilation: Compilation) -> Iterable[str]:
    for transition in compilation.normal.transitions:
        dims = _shape(compilation.step.array(_old(compilation.step, transition.state)).dims)
        yield f"{transition.state}{dims}: {class_text(transition)}"


def _old(step: Step, name: str) -> str:
    return next(state.old for state in step.states if state.name == name)


def class_text(transition: Transition) -> str:
    """The class with its rank, axis and, if it was given a reason, why."""
    text: str = transition.kind
    if transition.rank and "low rank" in text:
        text += f" (rank {transition.rank})"
    if transition.axis:
        text += f", decay along the {transition.axis} axis"
    if transition.reason:
        text += f"; {transition.reason}"
        text += f" (line {transition.line})" if transition.line else ""
    return text


def _form_lines(compilation: Compilation) -> Iterable[str]:
    yield "recurrent: legal"
    yield f"chunk: {chunk_text(compilation)}"


def chunk_text(compilation: Compilation) -> str:
    """Whether the chunk form is legal, and what stands in its way."""
    normal = compilation.normal
    if normal.chunk_reason:
        place = f" (line {normal.chunk_line})" if normal.chunk_line else ""
        return f"illegal: {normal.chunk_reason}{place}"
    if "chunk" in compilation.signature.forms:
        return "legal"
    return f"{NOT_YET}: {compilation.signature.chunk_reason or NO_KERNELS}"


def _backward_lines(backward: Backward) -> Iterable[str]:
    seeds = ", ".join(f"{seed} of {name}" for name, seed in backward.seeds)
    yield f"d_x is the gradient of x; what comes in: {seeds}"
    found = ", ".join(f"{name}: {adjoint or 'zero'}" for name, adjoint in backward.results)
    yield f"gradients: {found}"


def _cost_lines(compilation: Compilation) -> Iterable[str]:
    both, forward = work(compilation), flops(compilation.backward.forward.statements)
    step, backward = compilation.step, compilation.backward
    yield f"recurrent forward: {forward} FLOPs, {bytes_forward(step)} bytes in float32"
    yield f"recurrent forward and backward: {both} FLOPs, {bytes_backward(backward)} more bytes"
    yield f"state: {state_elements(step)} elements"


def work(compilation: Compilation) -> Dim:
    """FLOPs of the forward and the derived backward together."""
    backward = compilation.backward
    return flops(backward.forward.statements) + flops(backward.statements)


def _saved_lines(compilation: Compilation) -> Iterable[str]:
    saved = compilation.signature.saved
    for entry in saved:
        dims = _shape(Dim(tuple(poly)) for poly in entry.dims)
        if entry.kind == "checkpoint":
            yield f"{entry.name}: the state every {entry.interval} tokens, {dims} elements"
        else:
            yield f"{entry.name}{dims} of every token"
    if any(entry.kind == "checkpoint" for entry in saved):
        yield "recomputed: everything else, by replaying the tokens between two checkpoints"
    elif saved:
        yield "recomputed: everything else; no state is stored, since the adjoint needs none"
    else:
        yield "nothing beside the inputs: everything is recomputed"


def _stability(transition: Transition) -> str:
    note = _STABILITY.get(transition.kind, "{state}: no note for this class.")
    return note.format(state=transition.state)


def report_text(compilation: Compilation) -> str:
    """Plain text."""
    lines = [f"{compilation.rule.name}: {' '.join(compilation.rule.doc.split())}".rstrip(": ")]
    for section in sections(compilation):
        lines += ["", section.title]
        lines += [f"  {line}" for line in section.lines]
        lines += [f"    {statement_text(s)}" for s in section.equations]
    return "\n".join(lines) + "\n"


def report_markdown(compilation: Compilation) -> str:
    """Markdown; also a package's REPORT.md."""
    rule = compilation.rule
    lines = [f"# {rule.name}", ""]
    doc = " ".join(rule.doc.split())
    lines += [doc, ""] if doc else []
    lines += [f"Rule hash `{rule.hash}`.", "", "```yaml", rule.to_yaml().rstrip("\n"), "```"]
    for section in sections(compilation):
        lines += ["", f"## {section.title}", ""]
        lines += [f"- {_escaped(line)}" for line in section.lines]
        if section.equations:
            lines += ["", "```", *map(statement_text, section.equations), "```"]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("*", r"\*").replace("_", r"\_")


def report_latex(compilation: Compilation) -> str:
    """A LaTeX fragment (needs amsmath): the forward and the backward as aligned equations."""
    parts = []
    for section in sections(compilation):
        if section.equations:
            parts.append(f"% {section.title} of {compilation.rule.name}\n{_align(section)}")
        else:
            parts.append("\n".join(f"% {section.title}: {line}" for line in section.lines))
    return "\n\n".join(parts) + "\n"


def _align(section: Section) -> str:
    rows = [statement_latex(s).replace(" = ", " &= ", 1) for s in section.equations]
    rows = [r if "&=" in r else r.replace(r" \mathrel", r" &\mathrel", 1) for r in rows]
    return "\\begin{align}\n" + " \\\\\n".join(f"  {row}" for row in rows) + "\n\\end{align}"


def report_json(compilation: Compilation) -> dict[str, Any]:
    """The document of `fwgen explain --format json`."""
    step, normal = compilation.step, compilation.normal
    forms = compilation.signature.forms
    reason = normal.chunk_reason or compilation.signature.chunk_reason or NO_KERNELS
    legal = "chunk" in forms
    return {
        "name": compilation.rule.name,
        "hash": compilation.rule.hash,
        "inputs": _dims_of(step, "input"),
        "params": _dims_of(step, "param"),
        "buffers": _dims_of(step, "buffer"),
        "states": {s.name: [str(d) for d in step.array(s.old).dims] for s in step.states},
        "dims": {name: str(dim) for name, dim in step.dims},
        "transitions": {
            t.state: {
                "class": t.kind,
                "axis": t.axis,
                "rank": t.rank,
                "component": t.component,
                "line": t.line or None,
                "reason": t.reason or None,
            }
            for t in normal.transitions
        },
        "forms": {
            "recurrent": {"legal": True},
            "chunk": {
                "legal": legal,
                "reason": None if legal else reason,
                "line": None if legal else normal.chunk_line,
            },
        },
        "flops_per_token": {
            "recurrent": {
                "forward": str(flops(compilation.backward.forward.statements)),
                "forward_backward": str(work(compilation)),
            }
        },
        "bytes_per_token": {
            "recurrent": {
                "forward": str(bytes_forward(step)),
                "backward": str(bytes_backward(compilation.backward)),
            }
        },
        "state_elements": str(state_elements(step)),
        "saved": list(_saved_lines(compilation)),
        "stability": [_stability(t) for t in normal.transitions],
        "latex": report_latex(compilation),
    }


def _dims_of(step: Step, role: str) -> dict[str, list[str]]:
    return {a.name: [str(d) for d in a.dims] for a in step.arrays if a.role == role}
