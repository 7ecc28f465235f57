"""What a PyTorch user would write for the shipped rules: chunkwise forms, token loops, softmax.

Peers take contiguous tensors [B, H, T, D], the layout that suits them, and give [B, H, T, V].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

Tensors = dict[str, torch.Tensor]
Peer = Callable[[Tensors], torch.Tensor]

CHUNKED = ("sum", "deltanet", "gated_delta", "gla")
"""The rules that have a chunkwise peer."""


def chunk_peer(rule: str, size: int) -> Peer:
    """The chunkwise form of a rule of `CHUNKED`; the number of tokens is a multiple of `size`."""
    form = _delta_chunks if rule in ("deltanet", "gated_delta") else _additive_chunks
    return lambda x: form(_prepared(rule, x), size)


def loop_peer(rule: str) -> Peer:
    """The token loop over `unbind`, whose backward is linear in T (indexing's is quadratic)."""
    return lambda x: _loop(_prepared(rule, x), squash=rule == "tanh_delta")


def softmax_peer(x: Tensors) -> torch.Tensor:
    """Causal softmax attention over the same queries, keys and values."""
    return F.scaled_dot_product_attention(x["q"], x["k"], x["v"], is_causal=True)


def _prepared(rule: str, x: Tensors) -> Tensors:
    """Feature maps and the scale of the read."""
    x = dict(x)
    if rule == "sum":
        x["q"], x["k"] = F.elu(x["q"]) + 1, F.elu(x["k"]) + 1
    if rule in ("deltanet", "gated_delta"):
        x["q"], x["k"] = _unit(x["q"]), _unit(x["k"])
    if rule in ("deltanet", "gated_delta", "gla"):
        x["q"] = x["q"] * x["q"].shape[-1] ** -0.5
    return x


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _split(x: torch.Tensor, size: int) -> torch.Tensor:
    """[B, H, T, ...] to [B, H, chunks, size, ...]."""
    return x.reshape(*x.shape[:2], x.shape[2] // size, size, *x.shape[3:])


def _additive_chunks(x: Tensors, size: int) -> torch.Tensor:
    """W += v k^T, after a decay of the key axis where there is a gate `g` [B, H, T, K]."""
    q, k, v = (_split(x[name], size) for name in "qkv")
    if "g" not in x:
        writes = k.mT @ v
        start = writes.cumsum(2) - writes
        return ((q @ k.mT).tril() @ v + q @ start).flatten(2, 3)
    total = _split(x["g"], size).cumsum(3)
    end = total[:, :, :, -1]
    writes = (k * (end[:, :, :, None] - total).exp()).mT @ v
    q, k = q * total.exp(), k * (-total).exp()
    state, starts = torch.zeros_like(writes[:, :, 0]), []
    for decay, write in zip(end.exp().unbind(2), writes.unbind(2), strict=True):
        starts.append(state)
        state = decay[..., None] * state + write
    return ((q @ k.mT).tril() @ v + q @ torch.stack(starts, 2)).flatten(2, 3)


def _delta_chunks(x: Tensors, size: int) -> torch.Tensor:
    """The delta rule by one unit triangular solve per chunk, a scalar gate `g` as a mask."""
    q, k, v, rate = (_split(x[name], size) for name in ("q", "k", "v", "beta"))
    scaled = rate[..., None] * k
    inner, scores = scaled @ k.mT, q @ k.mT
    erase, read, write, keep = scaled, q, k, None
    if "g" in x:
        total = _split(x["g"], size).cumsum(3)
        gap = total[..., :, None] - total[..., None, :]
        past = torch.ones(size, size, dtype=torch.bool).tril()
        mask = gap.masked_fill(~past, float("-inf")).exp()
        inner, scores = inner * mask, scores * mask
        here, rest = total.exp()[..., None], (total[..., -1:] - total).exp()[..., None]
        erase, read, write = here * scaled, here * q, rest * k
        keep = total[..., -1].exp()[..., None, None].unbind(2)
    else:
        scores = scores.tril()
    right = torch.cat([rate[..., None] * v, erase], -1)
    solved = torch.linalg.solve_triangular(inner, right, upper=False, unitriangular=True)
    values, erase = solved.split([v.shape[-1], k.shape[-1]], -1)
    state, out = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), []
    parts = zip(*(t.unbind(2) for t in (values, erase, read, scores, write)), strict=True)
    for n, (value, old, query, score, key) in enumerate(parts):
        new = value - old @ state
        out.append(query @ state + score @ new)
        state = (state if keep is None else keep[n] * state) + key.mT @ new
    return torch.stack(out, 2).flatten(2, 3)


def _loop(x: Tensors, *, squash: bool) -> torch.Tensor:
    """One token at a time; the state is [B, H, V, K]."""
    rows = {name: t.unbind(2) for name, t in x.items()}
    state = x["k"].new_zeros(*x["k"].shape[:2], x["v"].shape[-1], x["k"].shape[-1])
    out = []
    for t in range(x["k"].shape[2]):
        key, value = rows["k"][t], rows["v"][t]
        if "g" in rows:
            gate = rows["g"][t].exp()
            state = state * (gate[..., None, None] if gate.dim() == 2 else gate[..., None, :])
        if "beta" in rows:
            value = rows["beta"][t][..., None] * (value - (state @ key[..., None])[..., 0])
        state = (torch.tanh(state) if squash else state) + value[..., :, None] * key[..., None, :]
        out.append((state @ rows["q"][t][..., None])[..., 0])
    return torch.stack(out, 2)
