# The rule deltanet, hash c4856772d690215bb880029f165e58427b88f4c4e3ecb5147eb3591c7ee50ed1.
# Made by `fwgen compile deltanet`; compile again, do not edit.
"""The rule `deltanet`, one token at a time in PyTorch.

    n = sum_i square(k[i])
    kf[i] = k[i] * rsqrt(n + 1e-06)
    p[i] = sum_j W[i, j] * kf[j]
    W_1[i, j] = W[i, j] + beta * (v[i] - p[i]) * kf[j]
    n_1 = sum_i square(q[i])
    phi_q[i] = q[i] * rsqrt(n_1 + 1e-06)
    p_1[i] = sum_j W_1[i, j] * phi_q[j]
    y[i] = rsqrt(K) * p_1[i]
"""

from __future__ import annotations

import torch
from torch import Tensor


def step(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor) -> tuple[Tensor, ...]:
    """One token: tensors [B, H, *dims] to the output and the new state."""
    K = q.shape[-1]
    # n = sum_i square(k[i])
    n = torch.square(k).sum(-1)
    # kf[i] = k[i] * rsqrt(n + 1e-06)
    kf = k * torch.rsqrt(n[..., None] + 1e-06)
    # p[i] = sum_j W[i, j] * kf[j]
    p = torch.einsum("...ij,...j->...i", W, kf)
    # W_1[i, j] = W[i, j] + beta * (v[i] - p[i]) * kf[j]
    W_1 = W + beta[..., None, None] * (v[..., :, None] - p[..., :, None]) * kf[..., None, :]
    # n_1 = sum_i square(q[i])
    n_1 = torch.square(q).sum(-1)
    # phi_q[i] = q[i] * rsqrt(n_1 + 1e-06)
    phi_q = q * torch.rsqrt(n_1[..., None] + 1e-06)
    # p_1[i] = sum_j W_1[i, j] * phi_q[j]
    p_1 = torch.einsum("...ij,...j->...i", W_1, phi_q)
    # y[i] = rsqrt(K) * p_1[i]
    y = K ** -0.5 * p_1
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
    beta = inputs["beta"]
    W = states["W"]
    outputs = []
    rows = zip(q.unbind(1), k.unbind(1), v.unbind(1), beta.unbind(1), strict=True)
    for q_t, k_t, v_t, beta_t in rows:
        out, W = step(q_t, k_t, v_t, beta_t, W)
        outputs.append(out)
    if not outputs:
        return W.new_zeros(q.shape[0], 0, q.shape[2], v.shape[-1]), {"W": W}
    return torch.stack(outputs, 1), {"W": W}
