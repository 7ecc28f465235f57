"""The delta rule without the compiler: its signature, and inputs for it."""

import torch

from fwgen.runtime.signature import Saved, Signature, StateSpec, TensorSpec

K, V = (((("K",), 1),), ((("V",), 1),))


def delta_signature(**changes) -> Signature:
    return Signature(
        **{
            "name": "hand_delta",
            "hash": "0123456789abcdef" * 4,
            "inputs": (
                TensorSpec("q", (K,)),
                TensorSpec("k", (K,)),
                TensorSpec("v", (V,)),
                TensorSpec("beta", ()),
            ),
            "params": (),
            "buffers": (),
            "states": (StateSpec("W", (V, K)),),
            "output": TensorSpec("y", (V,)),
            "free_dims": ("K", "V"),
            "saved": (Saved("error", "token", (V,)),),
            "chunk_reason": "written by hand",
            **changes,
        }
    )


def draw(T, B=2, H=4, K=5, V=3, dtype=torch.float32, grad=False, seed=0) -> dict[str, torch.Tensor]:
    """Inputs of one call."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (K,), "k": (K,), "v": (V,), "beta": ()}
    made = {
        name: torch.randn(B, T, H, *dims, generator=generator, dtype=torch.float64)
        for name, dims in shapes.items()
    }
    made["k"] = made["k"] / K**0.5
    made["beta"] = torch.sigmoid(made["beta"])
    return {n: t.to(dtype).requires_grad_(grad) for n, t in made.items()}
