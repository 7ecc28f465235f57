"""The code of one token, all arrays in registers."""

from __future__ import annotations

from collections.abc import Sequence

from fwgen.emit.triton.kernels import Recurrent, Token
from fwgen.emit.triton.module import Stage, alive, words
from fwgen.emit.triton.text import size
from fwgen.emit.triton.token import TokenWriter
from fwgen.schedule.graph import needed


def forward_token(found: Recurrent, output: bool) -> Token:
    """The forward statements; with `output` those of the output too."""
    step, names = found.step, found.module.names
    wanted = [s.new for s in step.states] + [step.output] * output
    writer = TokenWriter(found.module, Stage("stage_row"))
    writer.write(needed(step.statements, wanted))
    return _token(found, writer, [names[w] for w in wanted])


def reverse_token(found: Recurrent) -> Token:
    """The forward statements once more, then those of the adjoint."""
    step, backward, names = found.step, found.backward, found.module.names
    wanted = [adjoint for _, adjoint in backward.results if adjoint is not None]
    statements = needed(step.statements + backward.statements, wanted)
    writer = TokenWriter(found.module, Stage("stage_row"))
    own = set(step.statements)
    writer.write([s for s in statements if s in own])
    writer.write([s for s in statements if s not in own])
    for adjoint in wanted:
        writer.require(adjoint)
    return _token(found, writer, [names[w] for w in wanted])


def _token(found: Recurrent, writer: TokenWriter, wanted: Sequence[str]) -> Token:
    lines = alive(writer.lines, lambda: wanted)
    used = words(" ".join([*lines, *wanted]))
    return Token(
        tuple(lines),
        tuple(t for t in found.inputs if t.name in used or t.at in used),
        tuple(t for t in found.heads if t.name in used or t.row in used),
        str(size(writer.stage.total)) if writer.stage.offsets else "",
    )
