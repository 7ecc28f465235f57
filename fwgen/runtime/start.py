"""The states before the first token, for `CompiledRule.init_state`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import ArgumentError
from .signature import Poly, Signature
from .sizes import evaluate


def start_states(
    signature: Signature,
    B: object,
    H: object,
    sizes: object,
    params: object,
    dtype: object,
    device: object,
) -> dict[str, torch.Tensor]:
    """Fresh states [B, H, *dims]; raises ArgumentError for an argument that does not fit.

    Entries of `sizes` and `params` that no state needs are those of the rule's other tensors.
    """
    lead = (_count("B", B, 0), _count("H", H, 0))
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"dtype: expected torch.float32 or torch.float64, found {dtype!r}")
    known = {n: _count(f"sizes[{n!r}]", x, 1) for n, x in _dict("sizes", sizes).items()}
    place, starts = _device(device), _dict("params", {} if params is None else params)
    states = {}
    for spec in signature.states:
        dims = _shape(spec.name, spec.dims, known)
        if spec.init is None:
            learned = _learned(spec.name, starts, (lead[1], *dims))
            states[spec.name] = learned.to(place, dtype).expand(*lead, *dims).clone()
        else:
            states[spec.name] = torch.full((*lead, *dims), spec.init, dtype=dtype, device=place)
    return states


def _count(name: str, value: object, least: int) -> int:
    whole = isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
    if not whole or value < least:  # type: ignore[operator]
        wanted = "a positive int" if least else "an int of at least 0"
        raise ArgumentError(f"{name}: expected {wanted}, found {value!r}")
    return value  # type: ignore[return-value]


def _dict(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{name}: expected a dict by name, found {type(value).__name__}")
    return dict(value)


def _device(device: Any) -> torch.device:
    try:
        return torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        why = str(error).partition("\n")[0]
        raise ArgumentError(f"device: expected a device, found {device!r} ({why})") from None


def _shape(state: str, dims: Sequence[Poly], sizes: Mapping[str, int]) -> tuple[int, ...]:
    try:
        return tuple(evaluate(dim, sizes) for dim in dims)
    except KeyError as error:
        raise ArgumentError(
            f"sizes: {error.args[0]!r} is missing, a dim of the state {state}"
        ) from None


def _learned(state: str, params: Mapping[str, Any], shape: Sequence[int]) -> torch.Tensor:
    """The start value [H, *dims] of a state that has `init: param`."""
    label = f"params[{state!r}]"
    if state not in params:
        raise ArgumentError(f"{label}: missing; it holds the start value")
    value = params[state]
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(f"{label}: expected a tensor, found {type(value).__name__}")
    if tuple(value.shape) != tuple(shape):
        found = list(value.shape)
        raise ArgumentError(f"{label}: expected shape {list(shape)}, found {found}")
    return value
