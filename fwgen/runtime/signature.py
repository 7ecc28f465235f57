"""What the runtime knows of a rule: plain frozen data that travels as JSON with generated code."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

Poly = tuple[tuple[tuple[str, ...], int], ...]
"""A size: a sum of coefficient times named dims, `2*K + 1` is `((("K",), 2), ((), 1))`."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of one token and head: its name, its dims and whether it must be floating."""

    name: str
    dims: tuple[Poly, ...]
    floating: bool = True


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A carried state; `init` is its start value, None for a learned start (a param)."""

    name: str
    dims: tuple[Poly, ...]
    init: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Saved:
    """What a forward call keeps for the backward one.

    `token`: a tensor [B, H, T, *dims]. `checkpoint`: [slots, H, elements], one dim, with
    slots = tokens // interval + N; chunk c of sequence n lies in slot start // interval + n + c,
    start being the sequence's first token.
    """

    name: str
    kind: Literal["token", "checkpoint"]
    dims: tuple[Poly, ...]
    interval: int = 1


@dataclass(frozen=True, slots=True)
class Signature:
    """Names, dims and properties of a compiled rule, in the order of its declaration.

    `params` are those the formulas read; a state whose `init` is None adds one of its own name.
    `free_dims` is the order in which sizes are handed to kernels; `dims` holds derived ones (F).
    `room` holds sizes that must not be negative: what slices and fixed positions ask for.
    `constant` names inputs, params and states that nothing differentiable depends on.
    `parallel_dim` is a dim along which every formula works element by element: the first axis of
    the output, of every state, and of what else has it.
    """

    name: str
    hash: str
    inputs: tuple[TensorSpec, ...]
    params: tuple[TensorSpec, ...]
    buffers: tuple[TensorSpec, ...]
    states: tuple[StateSpec, ...]
    output: TensorSpec
    free_dims: tuple[str, ...]
    dims: tuple[tuple[str, Poly], ...] = ()
    forms: tuple[str, ...] = ("recurrent",)
    chunk_reason: str | None = None
    uses_position: bool = False
    saved: tuple[Saved, ...] = ()
    constant: tuple[str, ...] = ()
    room: tuple[Poly, ...] = ()
    parallel_dim: str | None = None

    @property
    def starts(self) -> tuple[TensorSpec, ...]:
        """The params that hold the start values of states, in order of the states."""
        return tuple(TensorSpec(s.name, s.dims) for s in self.states if s.init is None)

    def to_json(self) -> str:
        """One JSON document; `from_json` gives back an equal signature."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Signature:
        """The signature that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        return Signature(
            name=data["name"],
            hash=data["hash"],
            inputs=tuple(_tensor(d) for d in data["inputs"]),
            params=tuple(_tensor(d) for d in data["params"]),
            buffers=tuple(_tensor(d) for d in data["buffers"]),
            states=tuple(StateSpec(d["name"], _dims(d["dims"]), d["init"]) for d in data["states"]),
            output=_tensor(data["output"]),
            free_dims=tuple(data["free_dims"]),
            dims=tuple((name, _poly(poly)) for name, poly in data["dims"]),
            forms=tuple(data["forms"]),
            chunk_reason=data["chunk_reason"],
            uses_position=data["uses_position"],
            saved=tuple(
                Saved(d["name"], d["kind"], _dims(d["dims"]), d["interval"]) for d in data["saved"]
            ),
            constant=tuple(data["constant"]),
            room=_dims(data["room"]),
            parallel_dim=data["parallel_dim"],
        )


def _poly(data: Any) -> Poly:
    return tuple((tuple(names), int(factor)) for names, factor in data)


def _dims(data: Any) -> tuple[Poly, ...]:
    return tuple(_poly(poly) for poly in data)


def _tensor(data: Any) -> TensorSpec:
    return TensorSpec(data["name"], _dims(data["dims"]), data["floating"])
