"""Steps from the text of a rule: for tests whose point is what an expression becomes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fwgen.ir.nodes import Step
from fwgen.ir.verify import verify
from fwgen.language import load_rule, lower

HEAD = (
    "name: written\n"
    "inputs: {q: K, k: K, v: V, x: V, g: scalar, b: scalar}\n"
    "state: {W: [V, K], A: [V, K]}\n"
    "update: |\n"
)


def token(update: str, output: str = "W @ q") -> Step:
    """A token of a rule with inputs q, k: K, v, x: V, g, b: scalar and states W, A: [V, K]."""
    lines = [*update.strip().splitlines()]
    if not any(line.startswith("A =") for line in lines):
        lines.append("A = prev(A)")
    text = HEAD + "".join(f"  {line}\n" for line in lines) + f"output: {output}\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "written.yaml")
        path.write_text(text, "utf-8")
        step = lower(load_rule(path))
    verify(step, "step")
    return step
