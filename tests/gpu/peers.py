"""Timing of calls, and the kernels of flash-linear-attention for the rules that it also has."""

import importlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 7

# Rule -> module and function of the library, and the names of its arguments in our order.
NORMED = {"use_qk_l2norm_in_kernel": True}
PEERS: dict[str, tuple[str, str, tuple[str, ...], dict[str, bool]]] = {
    "deltanet": ("fla.ops.delta_rule", "chunk_delta_rule", ("q", "k", "v", "beta"), NORMED),
    "gated_delta": (
        "fla.ops.gated_delta_rule",
        "chunk_gated_delta_rule",
        ("q", "k", "v", "g", "beta"),
        NORMED,
    ),
    "kda": ("fla.ops.kda", "chunk_kda", ("q", "k", "v", "g", "beta"), NORMED),
    "gla": ("fla.ops.gla", "chunk_gla", ("q", "k", "v", "g"), {}),
    "simple_gla": ("fla.ops.simple_gla", "chunk_simple_gla", ("q", "k", "v", "g"), {}),
}


@dataclass(frozen=True)
class Tensors:
    """Inputs in the declared order, and the keywords of a call."""

    inputs: list[Tensor]
    named: dict[str, object]


@dataclass(frozen=True)
class Shape:
    """The sizes of a timed call."""

    B: int
    T: int
    H: int
    K: int
    V: int

    def tensors(self, signature: object, sizes: Mapping[str, int], device: str) -> Tensors:
        """bfloat16 inputs that keep every shipped rule tame: rates and decays within (0, 1)."""
        from fwgen.runtime.sizes import evaluate

        generator = torch.Generator().manual_seed(0)

        def draw(spec, *lead: int) -> Tensor:
            shape = (*lead, *(evaluate(dim, sizes) for dim in spec.dims))
            x = torch.rand(shape, generator=generator) * 0.5 + 0.25
            if spec.name in ("g", "gv", "gamma_log", "w"):
                x = -0.1 * x  # the log of a decay
            return x / max(1, x.shape[-1]) ** 0.5 if spec.dims else x

        def group(specs, *lead: int) -> dict[str, Tensor]:
            return {spec.name: draw(spec, *lead).to(device) for spec in specs}

        inputs = group(signature.inputs, self.B, self.T, self.H)
        named: dict[str, object] = {
            "params": group((*signature.params, *signature.starts), self.H) or None,
            "buffers": group(signature.buffers, self.H) or None,
        }
        return Tensors([x.bfloat16().requires_grad_() for x in inputs.values()], named)


def milliseconds(
    call: Callable[..., Tensor], inputs: Sequence[Tensor], device: str, label: str = ""
) -> dict[str, float]:
    """Medians of a forward call and of the gradients of all inputs."""

    def once(function: Callable[[], object]) -> float:
        _wait(device)
        start = time.perf_counter()
        function()
        _wait(device)
        return 1e3 * (time.perf_counter() - start)

    def gradients() -> object:
        return torch.autograd.grad(y, inputs, torch.ones_like(y), retain_graph=True)

    y = call(*inputs)
    gradients()
    rounds = ROUNDS if device == "cuda" else 1
    forward = statistics.median(once(lambda: call(*inputs)) for _ in range(rounds))
    backward = statistics.median(once(gradients) for _ in range(rounds))
    return {f"{label}forward": forward, f"{label}backward": backward}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peer_times(name: str, tensors: Tensors, device: str) -> dict[str, float]:
    """Timings of the library's kernels on the same tensors; empty where it has none."""
    if name not in PEERS or device != "cuda":
        return {}
    module, function, arguments, options = PEERS[name]
    try:
        kernel = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError):
        return {}
    inputs = dict(zip(arguments, tensors.inputs, strict=True))

    def call(*values: Tensor) -> Tensor:
        y: Tensor = kernel(**dict(zip(inputs, values, strict=True)), **options)[0]
        return y

    return milliseconds(call, tensors.inputs, device, "fla ")
