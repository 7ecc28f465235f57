"""Forward calls that are ready to run on tensors of a known look."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from .geometry import Geometry, Layout, Tensors, groups, saved_shapes
from .signature import Signature

Result = tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]
"""Output, final states, residuals."""


class Prepared(Protocol):
    """A forward call for tensors of one look: output, final states, residuals."""

    geometry: Geometry

    def __call__(self, flat: Tensors, clean: bool = False) -> Result:
        """Run it; with `clean`, what the kernels leave unwritten in residuals is zero."""


def look(tensors: Tensors) -> tuple[object, ...]:
    """All that preparing a call depends on; raises for what is not a dense tensor."""
    return tuple(
        [
            t
            if t is None
            else (
                t.shape,
                t.stride(),
                t.dtype,
                t.device,
                t.requires_grad,
                t.is_neg(),
                t.__class__,
            )
            for t in tensors
        ]
    )


class WithoutTokens:
    """A call without tokens: the output is empty and states pass through."""

    def __init__(
        self,
        signature: Signature,
        layout: Layout,
        geometry: Geometry,
        training: bool,
        final: bool,
        backend: str,
    ) -> None:
        self.signature, self.layout, self.geometry = signature, layout, geometry
        self.training, self.final, self.backend = training, final, backend

    def __call__(self, flat: Tensors, clean: bool = False) -> Result:
        """Run it."""
        g = self.geometry
        lead = (g.batch, g.tokens, g.heads)
        options: Any = {"device": g.device}
        shape = (*lead, *g.shape(self.signature.output.dims))
        y = torch.empty(shape, dtype=g.output_dtype, **options)
        finals, saved = [], []
        if self.final:
            for spec, (index, start) in zip(
                self.signature.states, self.layout.carried, strict=True
            ):
                state = flat[index] if flat[index] is not None or start is None else flat[start]
                final = torch.empty(
                    (g.sequences, g.heads, *g.shape(spec.dims)), dtype=g.dtype, **options
                )
                finals.append(final.fill_(spec.init or 0) if state is None else final.copy_(state))
        if self.training:
            shapes = saved_shapes(self.signature, g, self.backend)
            saved = [torch.zeros(shape, dtype=g.dtype, **options) for shape, _ in shapes]
        return y, finals, saved


class OnLists:
    """A backend that takes the groups of a call as lists (Triton)."""

    def __init__(
        self, backend: Any, layout: Layout, geometry: Geometry, training: bool, final: bool
    ) -> None:
        self.backend, self.layout, self.geometry = backend, layout, geometry
        self.training, self.final = training, final

    def __call__(self, flat: Tensors, clean: bool = False) -> Result:
        """Run it."""
        result: Result = self.backend.forward(
            *groups(self.layout, self.geometry, flat), training=self.training, want_final=self.final
        )
        return result
