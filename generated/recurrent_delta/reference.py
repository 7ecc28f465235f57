# The rule recurrent_delta, hash aabc7ad9bd999bc22a233de4839c836ae12251dc2a1c9fbb9b184dd40fd54f4c.
# Made by `fwgen compile recurrent_delta`; compile again, do not edit.
"""The rule `recurrent_delta`, one token at a time in PyTorch.

    h[i] = tanh(y[i])
    p[i] = sum_j Rk[i, j] * h[j]
    u[i] = k[i] + p[i]
    m = max_i u[i]
    e[i] = exp(u[i] - stop_gradient(m))
    s = sum_i e[i]
    kf[i] = e[i] / s
    p_1[i] = sum_j Rq[i, j] * h[j]
    u_1[i] = q[i] + p_1[i]
    m_1 = max_i u_1[i]
    e_1[i] = exp(u_1[i] - stop_gradient(m_1))
    s_1 = sum_i e_1[i]
    qf[i] = e_1[i] / s_1
    s_2 = sum_i rb[i] * h[i]
    p_2[i] = sum_j Rv[i, j] * h[j]
    p_3[i] = sum_j W[i, j] * kf[j]
    W_1[i, j] = W[i, j] + sigmoid(beta + s_2) * (v[i] + p_2[i] - p_3[i]) * kf[j]
    y_1[i] = sum_j W_1[i, j] * qf[j]
    out[i] = y_1[i]
"""

from __future__ import annotations

import torch
from torch import Tensor


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    Rq: Tensor,
    Rk: Tensor,
    Rv: Tensor,
    rb: Tensor,
    W: Tensor,
    y: Tensor,
) -> tuple[Tensor, ...]:
    """One token: tensors [B, H, *dims] to the output and the new states."""
    # h[i] = tanh(y[i])
    h = torch.tanh(y)
    # p[i] = sum_j Rk[i, j] * h[j]
    p = torch.einsum("...ij,...j->...i", Rk, h)
    # u[i] = k[i] + p[i]
    u = k + p
    # m = max_i u[i]
    m = u.amax(-1)
    # e[i] = exp(u[i] - stop_gradient(m))
    e = torch.exp(u - m[..., None].detach())
    # s = sum_i e[i]
    s = e.sum(-1)
    # kf[i] = e[i] / s
    kf = e / s[..., None]
    # p_1[i] = sum_j Rq[i, j] * h[j]
    p_1 = torch.einsum("...ij,...j->...i", Rq, h)
    # u_1[i] = q[i] + p_1[i]
    u_1 = q + p_1
    # m_1 = max_i u_1[i]
    m_1 = u_1.amax(-1)
    # e_1[i] = exp(u_1[i] - stop_gradient(m_1))
    e_1 = torch.exp(u_1 - m_1[..., None].detach())
    # s_1 = sum_i e_1[i]
    s_1 = e_1.sum(-1)
    # qf[i] = e_1[i] / s_1
    qf = e_1 / s_1[..., None]
    # s_2 = sum_i rb[i] * h[i]
    s_2 = torch.einsum("...i,...i->...", rb, h)
    # p_2[i] = sum_j Rv[i, j] * h[j]
    p_2 = torch.einsum("...ij,...j->...i", Rv, h)
    # p_3[i] = sum_j W[i, j] * kf[j]
    p_3 = torch.einsum("...ij,...j->...i", W, kf)
    # W_1[i, j] = W[i, j] + sigmoid(beta + s_2) * (v[i] + p_2[i] - p_3[i]) * kf[j]
    W_1 = (
        W
        + torch.sigmoid(beta[..., None, None] + s_2[..., None, None]) * (v[..., :, None] + p_2[..., :, None] - p_3[..., :, None]) * kf[..., None, :]
    )
    # y_1[i] = sum_j W_1[i, j] * qf[j]
    y_1 = torch.einsum("...ij,...j->...i", W_1, qf)
    # out[i] = y_1[i]
    out = y_1
    return out, W_1, y_1


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
    y = states["y"]
    Rq = params["Rq"].expand(q.shape[0], *params["Rq"].shape)
    Rk = params["Rk"].expand(q.shape[0], *params["Rk"].shape)
    Rv = params["Rv"].expand(q.shape[0], *params["Rv"].shape)
    rb = params["rb"].expand(q.shape[0], *params["rb"].shape)
    outputs = []
    rows = zip(q.unbind(1), k.unbind(1), v.unbind(1), beta.unbind(1), strict=True)
    for q_t, k_t, v_t, beta_t in rows:
        out, W, y = step(q_t, k_t, v_t, beta_t, Rq, Rk, Rv, rb, W, y)
        outputs.append(out)
    if not outputs:
        return y.new_zeros(q.shape[0], 0, q.shape[2], q.shape[-1]), {"W": W, "y": y}
    return torch.stack(outputs, 1), {"W": W, "y": y}
