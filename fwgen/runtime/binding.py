"""From the arguments of a call, as the user wrote them, to the flat list of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch

from ..errors import ArgumentError
from .signature import Signature

HEADS = ("params", "buffers")
CALL = (*HEADS, "initial_state", "output_final_state", "cu_seqlens", "position")
OPTIONS = {
    False: (*CALL, "form", "backend", "chunk_size"),
    True: ("state", *HEADS, "position", "backend"),
}
"""What a call takes beside inputs, and a step (True)."""
CARRIED = {False: "initial_state", True: "state"}
"""What the argument is called that holds the states, in a call and in a step (True)."""


class Binder:
    """Puts the arguments of a rule's calls in order; checks names, not tensors.

    `step` in its methods says that the call is one of `step`, whose arguments have other names.
    """

    def __init__(self, signature: Signature) -> None:
        self.inputs = tuple(spec.name for spec in signature.inputs)
        self.params = tuple(spec.name for spec in (*signature.params, *signature.starts))
        self.buffers = tuple(spec.name for spec in signature.buffers)
        self.states = tuple(spec.name for spec in signature.states)
        self.fresh = (None,) * len(self.states)

    def flat(
        self,
        inputs: Sequence[Any],
        named: Mapping[str, Any],
        params: Any,
        buffers: Any,
        initial: Any,
        cu_seqlens: Any,
        position: Any,
        *,
        step: bool = False,
    ) -> list[Any]:
        """The flat list of a call's tensors."""
        if named or len(inputs) != len(self.inputs):
            inputs = self.in_order(inputs, named)
        flat = list(inputs)
        if self.params or params is not None:
            flat += _group("params", self.params, params)
        if self.buffers or buffers is not None:
            flat += _group("buffers", self.buffers, buffers)
        flat += self.fresh if initial is None else self.initial(initial, CARRIED[step])
        if isinstance(position, int) and not isinstance(position, bool):
            position = _positions(position, flat[0], cu_seqlens)
        flat.append(cu_seqlens)
        flat.append(position)
        return flat

    def in_order(
        self, inputs: Sequence[Any], named: Mapping[str, Any], *, step: bool = False
    ) -> list[Any]:
        """The inputs in declared order, from those by position and those by keyword."""
        names = self.inputs
        if len(inputs) > len(names):
            raise ArgumentError(
                f"inputs: expected {len(names)} ({', '.join(names)}), found {len(inputs)}"
            )
        found = dict(zip(names, inputs, strict=False))
        for name, value in named.items():
            if name not in names:
                raise ArgumentError(f"{name}: no such argument; {self._nearest(name, step)}")
            if name in found:
                raise ArgumentError(f"{name}: given by position and by keyword")
            found[name] = value
        for name in names:
            if name not in found:
                raise ArgumentError(f"{name}: missing; expected a tensor for this input")
        return [found[name] for name in names]

    def _nearest(self, name: str, step: bool) -> str:
        """What an unknown argument may have meant."""
        known = (*self.inputs, *OPTIONS[step])
        if step and name in OPTIONS[False] and name != CARRIED[False]:
            return "a call takes it, `step` does not"
        near = get_close_matches(name, known, n=1)
        near += [o for o in OPTIONS[step] if o in name or name in o]
        if near:
            return f"did you mean `{near[0]}`?"
        return f"the inputs are {', '.join(self.inputs)}"

    def initial(self, initial: Any, argument: str = CARRIED[False]) -> list[Any]:
        """The states in order, None for those that start fresh; `argument` holds them."""
        names = self.states
        if isinstance(initial, torch.Tensor):
            if len(names) != 1:
                raise ArgumentError(
                    f"{argument}: expected a dict by name ({', '.join(names)}), found a tensor"
                )
            return [initial]
        if not isinstance(initial, Mapping):
            raise ArgumentError(
                f"{argument}: expected a dict by name or a tensor, found {type(initial).__name__}"
            )
        for name in initial:
            if name not in names:
                raise ArgumentError(
                    f"{argument}: no state is called {name!r}, expected {', '.join(names)}"
                )
        return [initial.get(name) for name in names]


def with_token_axis(name: str, tensor: Any) -> Any:
    """A token's input [B, H, ...] as a sequence of one, [B, 1, H, ...]."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 1:
        found = "a scalar" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ArgumentError(f"{name}: expected a tensor [B, H, ...], found {found}")
    return tensor.unsqueeze(1)


def _group(kind: str, names: Sequence[str], given: Any) -> list[Any]:
    """The tensors of `params` or `buffers` in order."""
    if given is not None and not isinstance(given, Mapping):
        raise ArgumentError(f"{kind}: expected a dict by name, found {type(given).__name__}")
    given = given or {}
    for name in given:
        if name not in names:
            known = ", ".join(names) or "none"
            raise ArgumentError(f"{kind}: the rule has no {name!r} there, expected {known}")
    for name in names:
        if name not in given:
            raise ArgumentError(f"{kind}[{name!r}]: missing; expected a tensor [H, ...]")
    return [given[name] for name in names]


def _positions(position: int, first: Any, cu_seqlens: Any) -> Any:
    """The position of every sequence as a tensor."""
    if not 0 <= position < 2**63:
        raise ArgumentError(f"position: expected a token index, 0 to 2^63 - 1, found {position}")
    like = first if isinstance(cu_seqlens, type(None)) else cu_seqlens
    if not isinstance(like, torch.Tensor) or like.dim() < 1:
        return None  # the checks of that tensor will say what is wrong
    count = like.shape[0] if cu_seqlens is None else max(like.shape[0] - 1, 0)
    return torch.full((count,), position, dtype=torch.int64, device=like.device)
