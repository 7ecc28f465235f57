"""The report as the JSON document of `fwgen explain --format json`."""

from __future__ import annotations

from typing import Any

from fwgen.commands.report import facts, render
from fwgen.commands.report.blocks import Equations, Items, Paragraph, Section, plain
from fwgen.commands.report.equations import equation_text
from fwgen.commands.report.sections import KEPT, STABILITY, sections
from fwgen.driver import Compilation
from fwgen.emit.costs import (
    bytes_backward,
    bytes_forward,
    flops,
    flops_backward,
    state_elements,
)
from fwgen.ir.nodes import Step


def document(compilation: Compilation) -> dict[str, Any]:
    """Everything that the other formats say, by name."""
    step = compilation.step
    found = {section.title: section for section in sections(compilation)}
    return {
        "name": compilation.rule.name,
        "hash": compilation.rule.hash,
        "inputs": _dims_of(step, "input"),
        "params": _dims_of(step, "param"),
        "buffers": _dims_of(step, "buffer"),
        "states": {s.name: [str(d) for d in step.array(s.old).dims] for s in step.states},
        "dims": {name: str(dim) for name, dim in step.dims},
        "transitions": _transitions(compilation),
        "forms": _forms(compilation),
        **_costs(compilation),
        "state_elements": str(state_elements(step)),
        "saved": _lines(found[KEPT]),
        "stability": _lines(found[STABILITY]),
        "latex": render.latex(compilation.rule, list(found.values())),
    }


def _lines(section: Section) -> list[str]:
    """The lines of a section as text, equations included."""
    found: list[str] = []
    for block in section.blocks:
        match block:
            case Items(lines):
                found += map(plain, lines)
            case Paragraph(line):
                found.append(plain(line))
            case Equations(equations):
                found += map(equation_text, equations)
    return found


def _dims_of(step: Step, role: str) -> dict[str, list[str]]:
    return {a.name: [str(d) for d in a.dims] for a in step.arrays if a.role == role}


def _transitions(compilation: Compilation) -> dict[str, Any]:
    return {
        t.state: {
            "class": t.kind,
            "axis": t.axis,
            "rank": t.rank,
            "component": t.component,
            "line": t.line or None,
            "reason": t.reason or None,
        }
        for t in compilation.normal.transitions
    }


def _forms(compilation: Compilation) -> dict[str, Any]:
    reason = facts.chunk_reason(compilation)
    line = None if reason is None else compilation.normal.chunk_line
    return {
        "recurrent": {"legal": True},
        "chunk": {"legal": reason is None, "reason": reason, "line": line},
    }


def _costs(compilation: Compilation) -> dict[str, Any]:
    step, backward = compilation.step, compilation.backward
    forward, adjoint = flops(backward.forward.statements), flops_backward(backward)
    again = flops(facts.recomputed(compilation))
    return {
        "flops_per_token": {
            "recurrent": {
                "forward": str(forward),
                "backward": str(adjoint),
                "recomputed": str(again),
                "forward_backward": str(forward + adjoint + again),
            }
        },
        "bytes_per_token": {
            "recurrent": {
                "forward": str(bytes_forward(step)),
                "backward": str(bytes_backward(backward)),
            }
        },
    }
