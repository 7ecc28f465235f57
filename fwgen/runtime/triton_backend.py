"""Runs the generated Triton kernels of a rule: loads the module's text, launches its kernels."""

from __future__ import annotations

import hashlib
import linecache
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

import triton  # noqa: F401 (its absence must show here, not at the first call)

from ..errors import UnsupportedError
from .signature import Signature, TensorSpec
from .sizes import Axis, bind

FILES = ("triton_recurrent.py", "triton_large.py")
"""Modules by preference: states in registers, or in memory where they are too large for these."""

Tensor = torch.Tensor
Result = tuple[Tensor, list[Tensor], list[Tensor]]


def load_module(name: str, source: str) -> ModuleType:
    """The module with that text; loaded once per process and content.

    Triton reads the source of its kernels, so the text is made known to `linecache`.
    """
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    full = f"fwgen_generated_{name}_{digest}"
    if full in sys.modules:
        return sys.modules[full]
    file = f"<{full}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = ModuleType(full)
    module.__file__ = file
    sys.modules[full] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[full]
        raise
    return module


class TritonBackend:
    """The recurrent kernels of one rule on CUDA and HIP devices.

    CPU tensors are served under TRITON_INTERPRET=1 only. Compute and states are float32.
    """

    def __init__(self, signature: Signature, sources: Mapping[str, str]) -> None:
        self.signature = signature
        self.modules: list[Any] = [
            load_module(signature.name, sources[file]) for file in FILES if file in sources
        ]

    def forward(
        self,
        inputs: Sequence[Tensor],
        params: Sequence[Tensor],
        buffers: Sequence[Tensor],
        states: Sequence[Tensor | None],
        cu_seqlens: Tensor | None,
        position: Tensor | None,
        training: bool,
        want_final: bool,
    ) -> Result:
        """y [B, T, H, *dims], final states [N, H, *dims] (if wanted), and what backward needs.

        Inputs [B, T, heads, *dims], params and buffers [H, *dims], states [N, H, *dims] or None.
        Raises UnsupportedError for float64, for CPU tensors outside the interpreter, and for sizes
        whose state exceeds what one program holds.
        """
        call = (inputs, params, buffers, states)
        self._check(*call)
        y, finals, saved = self._run("forward", *call, cu_seqlens, position, training, want_final)
        return y, finals, self._residuals(saved) if training else []

    def backward(
        self,
        inputs: Sequence[Tensor],
        params: Sequence[Tensor],
        buffers: Sequence[Tensor],
        states: Sequence[Tensor | None],
        cu_seqlens: Tensor | None,
        position: Tensor | None,
        saved: Sequence[Tensor],
        grad_y: Tensor | None,
        grad_finals: Sequence[Tensor | None],
        wanted: Sequence[bool],
    ) -> list[Tensor | None]:
        """Gradients of inputs [B, T, H, *dims], params [H, *dims] and states [N, H, *dims].

        `wanted` says per input, param and state whether its gradient is asked for; the others are
        None. All gradients are float32.
        """
        call = (inputs, params, buffers, states)
        self._check(*call)
        saved = list(saved)[:1]
        if not saved:  # the caller keeps nothing for this rule: walk forward once more
            _, _, saved = self._run("forward", *call, cu_seqlens, position, True, False)
        found: list[Tensor | None] = self._run(
            "backward", *call, cu_seqlens, position, saved, grad_y, grad_finals, wanted
        )
        return found

    def _residuals(self, saved: list[Tensor]) -> list[Tensor]:
        """The checkpoints as the one or more tensors that the signature announces."""
        count = len(self.signature.saved)
        return [*saved, *(saved[0].new_empty(0) for _ in range(count - 1))][:count]

    def module(self, direction: str, sizes: Mapping[str, int]) -> Any:
        """The module whose `forward` or `backward` serves these sizes best.

        Raises UnsupportedError where none does.
        """
        reason = ""
        for module in self.modules:
            reason = module.refusal(sizes, direction)
            if not reason:
                return module
        raise UnsupportedError(reason)

    def _run(self, direction: str, *call: Any) -> Any:
        sizes = self._sizes(*call[:4])
        module = self.module(direction, sizes)
        with torch.no_grad(), _device(call[0][0]):
            return getattr(module, direction)(sizes, *call)

    def _sizes(self, *groups: Sequence[Tensor | None]) -> dict[str, int]:
        signature = self.signature
        specs = (
            (signature.inputs, 3),
            (signature.params, 1),
            (signature.buffers, 1),
            (tuple(TensorSpec(s.name, s.dims) for s in signature.states), 2),
        )
        axes = [
            Axis(spec.name, dim, size)
            for (known, lead), tensors in zip(specs, groups, strict=True)
            for spec, tensor in zip(known, tensors, strict=True)
            if tensor is not None
            for dim, size in zip(spec.dims, tensor.shape[lead:], strict=True)
        ]
        return bind(axes, signature.free_dims)[0]

    def _check(self, *groups: Sequence[Tensor | None]) -> None:
        for tensor in (t for group in groups for t in group if t is not None):
            if tensor.dtype == torch.float64:
                raise UnsupportedError(
                    "the Triton kernels compute in float32 and take no float64 tensors; "
                    'backend="cpu" and backend="reference" do'
                )
            if tensor.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
                raise UnsupportedError(
                    f'backend="triton" serves GPU tensors, found {tensor.device.type} tensors; '
                    'backend="cpu" serves them (TRITON_INTERPRET=1 runs Triton on them for tests)'
                )


def _device(tensor: Tensor) -> Any:
    """Triton launches on the current device: make it the tensor's."""
    return torch.cuda.device(tensor.device if tensor.is_cuda else -1)
