"""Runs the generated PyTorch token loop: slow, readable, differentiated by plain autograd."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from .geometry import Geometry, Layout, Tensors
from .signature import Signature

Reference = Callable[..., tuple[torch.Tensor, dict[str, torch.Tensor]]]


class ReferenceBackend:
    """The function `reference(inputs, params, buffers, states, position)` of the generated text."""

    def __init__(self, signature: Signature, source: str) -> None:
        self.signature, self.layout = signature, Layout.of(signature)
        file = f"<fwgen reference of {signature.name} {signature.hash[:8]}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        module: dict[str, Any] = {"__name__": file}
        exec(compile(source, file, "exec"), module)
        self.function: Reference = module["reference"]

    def __call__(
        self, geometry: Geometry, flat: Tensors
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Output [B, T, H, *dims] in the first input's dtype, and the final states."""
        signature, layout = self.signature, self.layout
        inputs = {}
        for spec, tensor in zip(signature.inputs, flat[layout.inputs], strict=True):
            assert tensor is not None
            group = geometry.heads // tensor.shape[2]
            wide = tensor.to(geometry.dtype)
            inputs[spec.name] = wide if group == 1 else wide.repeat_interleave(group, 2)
        params = self._named(signature.params, flat[layout.params], geometry)
        buffers = self._named(signature.buffers, flat[layout.buffers], geometry)
        states = self._states(geometry, flat)
        position = flat[-1]
        if position is None:
            position = torch.zeros(geometry.sequences, dtype=torch.int64, device=geometry.device)
        run = self._packed if flat[-2] is not None else self._rows
        y, finals = run(geometry, inputs, params, buffers, states, position, flat[-2])
        # Without tokens the loop hands back the states that it was given.
        finals = {n: t.clone() if t is states[n] else t for n, t in finals.items()}
        touch = _touch(flat)
        if touch is not None:
            y, finals = y + touch, {n: t + touch for n, t in finals.items()}
        return y.to(geometry.output_dtype), finals

    def _named(self, specs: Any, tensors: Any, geometry: Geometry) -> dict[str, torch.Tensor]:
        pairs = zip(specs, tensors, strict=True)
        return {spec.name: tensor.to(geometry.dtype) for spec, tensor in pairs}

    def _states(self, geometry: Geometry, flat: Tensors) -> dict[str, torch.Tensor]:
        states = {}
        for spec, (index, start) in zip(self.signature.states, self.layout.carried, strict=True):
            state = flat[index]
            shape = (geometry.sequences, geometry.heads, *geometry.shape(spec.dims))
            if state is None and start is not None:
                learned = flat[start]
                assert learned is not None
                state = learned.to(geometry.dtype).expand(shape)
            elif state is None:
                state = torch.full(
                    shape, spec.init or 0.0, dtype=geometry.dtype, device=geometry.device
                )
            states[spec.name] = state
        return states

    def _rows(
        self,
        geometry: Geometry,
        inputs: dict[str, torch.Tensor],
        params: dict[str, torch.Tensor],
        buffers: dict[str, torch.Tensor],
        states: dict[str, torch.Tensor],
        position: torch.Tensor,
        cu_seqlens: torch.Tensor | None,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self.function(inputs, params, buffers, states, position)

    def _packed(
        self,
        geometry: Geometry,
        inputs: dict[str, torch.Tensor],
        params: dict[str, torch.Tensor],
        buffers: dict[str, torch.Tensor],
        states: dict[str, torch.Tensor],
        position: torch.Tensor,
        cu_seqlens: torch.Tensor | None,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """One sequence after the other."""
        assert cu_seqlens is not None
        outputs, finals = [], []
        for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
            y, final = self.function(
                {name: tensor[:, start:stop] for name, tensor in inputs.items()},
                params,
                buffers,
                {name: tensor[n : n + 1] for name, tensor in states.items()},
                position[n : n + 1],
            )
            outputs.append(y)
            finals.append(final)
        if not outputs:
            return self.function(inputs, params, buffers, states, position)
        joined = {name: torch.cat([final[name] for final in finals]) for name in states}
        return torch.cat(outputs, 1), joined


def _touch(flat: Tensors) -> torch.Tensor | None:
    """Zero, as a function of all tensors that ask for gradients; None if there are none.

    Results depend on every one of them, as those of the kernels do: what a formula leaves unused,
    or a call without tokens, has a gradient of zeros.
    """
    asking = [t for t in flat if t is not None and t.requires_grad]
    if not asking or not torch.is_grad_enabled():
        return None
    return torch.stack([t.narrow(0, 0, 0).sum().double() for t in asking]).sum()
