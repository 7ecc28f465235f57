# The rule sum, hash 2ebca171134ba88a13a3d6e6fac8f69b83b44e5580ddbc7cbbbe5bd9daea2f9c.
# Made by `fwgen compile sum`; compile again, do not edit.
"""The rule `sum`, one token at a time in PyTorch.

    phi_k[i] = elu(k[i]) + 1
    W_1[i, j] = W[i, j] + v[i] * phi_k[j]
    phi_q[i] = elu(q[i]) + 1
    y[i] = sum_j W_1[i, j] * phi_q[j]
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def step(q: Tensor, k: Tensor, v: Tensor, W: Tensor) -> tuple[Tensor, ...]:
    """One token: tensors [B, H, *dims] to the output and the new state."""
    # phi_k[i] = elu(k[i]) + 1
    phi_k = functional.elu(k) + 1
    # W_1[i, j] = W[i, j] + v[i] * phi_k[j]
    W_1 = W + v[..., :, None] * phi_k[..., None, :]
    # phi_q[i] = elu(q[i]) + 1
    phi_q = functional.elu(q) + 1
    # y[i] = sum_j W_1[i, j] * phi_q[j]
    y = torch.einsum("...ij,...j->...i", W_1, phi_q)
    return y, W_1


def reference(
    inputs: dict[str, Tensor],
    params: dict[str, Tensor],
    buffers: dict[str, Tensor],
    states: dict[str, Tensor],
    position: Tensor | int = 0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run the rule over all tokens; gives y [B, T, H, *dims] and the final states.

    Inputs [B, T, H, *dims], params and buffers [H, *dims], states [B, H, *dims]; all
    floating ones of one dtype; `position` (int, or int64 [B]): the first token's index.
    """
    q = inputs["q"]
    k = inputs["k"]
    v = inputs["v"]
    W = states["W"]
    outputs = []
    for q_t, k_t, v_t in zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True):
        out, W = step(q_t, k_t, v_t, W)
        outputs.append(out)
    if not outputs:
        return W.new_zeros(q.shape[0], 0, q.shape[2], v.shape[-1]), {"W": W}
    return torch.stack(outputs, 1), {"W": W}
