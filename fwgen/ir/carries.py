"""Quantities handed from token to token, and recurrences that run beside the states."""

from __future__ import annotations

from dataclasses import dataclass

from fwgen.ir.nodes import Array, Statement


@dataclass(frozen=True, slots=True)
class Carry:
    """A quantity handed from token to token: the arrays before and after, in the scan's direction.

    `start` and `finish` name the tensors that it comes from and goes to at the two ends of the
    sequence, `""` where there is none: it then starts at zero, or is dropped.
    """

    before: str
    after: str
    start: str = ""
    finish: str = ""


@dataclass(frozen=True, slots=True)
class Telescoped:
    """Gradients of log-decays by a sum over later tokens (`algebra.telescope`).

    `carries` and `statements` run backward in time, after all other gradients of a token are
    known. `finale` gives their start values; it runs before the last token's update, and reads the
    state before that token and the adjoint of the one after it. The scalar array of
    `mark inner` is 1 at every token but the last, where it is 0; that of `mark held <state>` is 1
    at every token but a first one whose old state is zero, where it is 0.
    """

    arrays: tuple[Array, ...] = ()
    carries: tuple[Carry, ...] = ()
    statements: tuple[Statement, ...] = ()
    finale: tuple[Statement, ...] = ()


def is_mark(array: Array) -> bool:
    """Whether an array marks tokens, see `Telescoped`."""
    return array.of.startswith("mark ")
