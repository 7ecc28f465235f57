"""What a CPU kernel does, as data: sweeps over chunks of tokens, made of batches and scans.

A *sweep* walks a sequence of one head chunk by chunk. A *batch* runs statements for all tokens of
a chunk, since none of them waits for the recurrence; a *scan* runs token after token and carries
state. Narrow values (vectors, scalars) have a row per token of the chunk, so that batches and scans
exchange them freely; matrices (arrays of two and more axes that depend on a carried one) live
inside their scan.
"""

from __future__ import annotations

from dataclasses import dataclass

from fwgen.ir.carries import Carry
from fwgen.ir.nodes import Array, Statement, Step, Var


@dataclass(frozen=True, slots=True)
class Nest:
    """Statements over the same matrix domain, run in one pass over its elements.

    No statement reads what another one reduces. `lane` is vectorised, `row` is the loop.
    """

    row: Var
    lane: Var
    statements: tuple[Statement, ...]


Item = Statement | Nest


@dataclass(frozen=True, slots=True)
class Batch:
    """Statements run for all tokens of a chunk, or with `seconds` for each second one."""

    statements: tuple[Statement, ...]
    seconds: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """What differs at the second token of a pair, whose first one leaves the state as it was.

    `reads` take the place of the nest's reads, over the nest's variables; `repairs` add what the
    first token wrote, as far as the scan needs it. `write` is the update of both tokens in one.
    """

    reads: tuple[Statement, ...]
    write: Statement
    repairs: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """A recurrence over the tokens of a chunk.

    `items` is the body for one token. With `rotated`, the first item (`items[0]`, a Nest) of a
    token runs fused with the last item of the token before it. With `split`, blocks of lanes do not
    depend on each other and run one after the other over the whole chunk. With `history`, every
    token's matrices are kept for the reverse scan. With `pair`, two tokens share each pass over
    the state.
    """

    carries: tuple[Carry, ...]
    items: tuple[Item, ...]
    reverse: bool = False
    rotated: bool = False
    split: str | None = None
    history: bool = False
    pair: Pair | None = None


def statements_of(phase: Batch | Scan) -> list[Statement]:
    """All statements of a phase."""
    if isinstance(phase, Batch):
        return list(phase.statements)
    found: list[Statement] = []
    for item in phase.items:
        found.extend([item] if isinstance(item, Statement) else item.statements)
    if phase.pair is not None:
        found.extend((*phase.pair.reads, phase.pair.write, *phase.pair.repairs))
    return found


@dataclass(frozen=True, slots=True)
class Sweep:
    """One walk over the chunks of a sequence, forward or backward in time.

    `loads`, `stores`: token arrays exchanged with memory, array name -> tensor name.
    `fetches`, `spills`: token arrays exchanged with other sweeps of the same kernel.
    `finale`: statements that run once, before the update of the last token. The tensors `mark ...`
    are none: they mark the last token, and a first token without an old state.
    `key_lanes`: matrices are vectorised along their last axis instead of their first.
    """

    phases: tuple[Batch | Scan, ...]
    reverse: bool
    loads: tuple[tuple[str, str], ...]
    stores: tuple[tuple[str, str], ...]
    carries: tuple[Carry, ...]
    fetches: tuple[str, ...] = ()
    spills: tuple[str, ...] = ()
    finale: tuple[Statement, ...] = ()
    key_lanes: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A forward or backward kernel: sweeps in order, and all arrays they mention.

    `param_gradients`: arrays that sum up over all tokens, and the tensors that they go to.
    """

    name: str
    arrays: tuple[Array, ...]
    sweeps: tuple[Sweep, ...]
    param_gradients: tuple[tuple[str, str], ...] = ()

    def array(self, name: str) -> Array:
        """The array of that name; raises KeyError."""
        for array in self.arrays:
            if array.name == name:
                return array
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """The CPU kernels of a rule: forward, backward, and what the forward keeps for the backward.

    `saved`: token arrays of the forward that the backward reads. `replay`: the backward restores
    states from checkpoints at chunk starts (a nonlinear rule), for `reason`; otherwise no state is
    kept. `chunk` is the number of tokens of a chunk.
    """

    step: Step
    forward_kernel: Kernel
    backward_kernel: Kernel
    saved: tuple[str, ...]
    replay: bool
    reason: str | None
    chunk: int
