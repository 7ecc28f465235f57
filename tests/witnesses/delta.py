"""Witnesses of the delta family: a write corrects what the state already answers at the key."""

from collections.abc import Callable

import torch
from torch import Tensor

from witnesses import maps
from witnesses.linear import QKV
from witnesses.table import Values, Witness

Result = tuple[Tensor, dict[str, Tensor]]


def corrected(W: Tensor, rate: Tensor, v: Tensor, k: Tensor, erase: Tensor | None = None) -> Tensor:
    """W + rate (v - W e) k^T, the erase key e being k unless it is given."""
    answer = W @ (k if erase is None else erase)
    return W + torch.outer(rate * (v - answer), k)


def dpfp_normalised(x: Tensor) -> Tensor:
    return maps.sum_normalize(maps.dpfp(x, nu=1), eps=1e-6)


def scaled(y: Tensor, q: Tensor) -> Tensor:
    return y / q.shape[0] ** 0.5


def plain(phi: Callable[[Tensor], Tensor], *, scale: bool) -> Callable[..., Result]:
    def step(x: Values, p: Values, s: Values) -> Result:
        W = corrected(s["W"], x["beta"], x["v"], phi(x["k"]))
        y = W @ phi(x["q"])
        return (scaled(y, x["q"]) if scale else y), {"W": W}

    return step


def attention_normalised(x: Values, p: Values, s: Values) -> Result:
    fq, fk = dpfp_normalised(x["q"]), dpfp_normalised(x["k"])
    kappa = torch.where(s["z"].sum() > 0, (s["z"] * fk).sum(), torch.ones_like(fk[0]))
    old = (s["W"] @ fk) / (kappa + 1e-6)
    z = s["z"] + fk
    W = s["W"] + torch.outer(x["beta"] * (x["v"] - old), fk)
    return (W @ fq) / ((z * fq).sum() + 1e-6), {"W": W, "z": z}


def gated(x: Values, p: Values, s: Values) -> Result:
    """Gated delta and KDA: the decay comes first, per head or per key channel."""
    fq, fk = maps.l2norm(x["q"]), maps.l2norm(x["k"])
    W = corrected(s["W"] * torch.exp(x["g"]), x["beta"], x["v"], fk)
    return scaled(W @ fq, fq), {"W": W}


def gdn2(x: Values, p: Values, s: Values) -> Result:
    W = s["W"] * torch.exp(x["g"])
    W = W + torch.outer(x["w"] * x["v"] - W @ (x["b"] * x["k"]), x["k"])
    return scaled(W @ x["q"], x["q"]), {"W": W}


def comba(x: Values, p: Values, s: Values) -> Result:
    W = corrected(s["W"] * torch.exp(x["g"]), x["beta"], x["v"], x["k"], erase=x["p"])
    return scaled(W @ x["q"], x["q"]), {"W": W}


def delta_product(x: Values, p: Values, s: Values) -> Result:
    W = s["W"] * torch.exp(x["g"])
    for k, v, beta in zip(x["k"], x["v"], x["beta"], strict=True):
        W = corrected(W, beta, v, maps.l2norm(k))
    return scaled(W @ maps.l2norm(x["q"]), x["q"]), {"W": W}


def oja(x: Values, p: Values, s: Values) -> Result:
    W = torch.exp(x["gv"])[:, None] * s["W"]
    W = W + x["beta"] * torch.outer(x["v"], x["k"] - W.T @ x["v"])
    return scaled(W @ x["q"], x["q"]), {"W": W}


def longhorn(x: Values, p: Values, s: Values) -> Result:
    k = x["k"]
    rate = x["beta"] / (1 + x["beta"] * (k * k).sum())
    W = (1 - torch.outer(rate, k * k)) * s["W"] + torch.outer(rate * x["x"], k)
    return W @ x["q"] + p["D"] * x["x"], {"W": W}


def momentum_delta(x: Values, p: Values, s: Values) -> Result:
    error = s["W"] @ x["p"] - x["v"]
    M = torch.exp(x["mu"]) * s["M"] + x["eta"] * torch.outer(error, x["k"])
    W = torch.exp(x["g"]) * s["W"] - x["beta"] * M
    return scaled(W @ x["q"], x["q"]), {"W": W, "M": M}


def titans(x: Values, p: Values, s: Values) -> Result:
    error = s["W"] @ x["k"] - x["v"]
    M = x["eta"] * s["M"] - x["theta"] * torch.outer(error, x["k"])
    W = (1 - x["alpha"]) * s["W"] + M
    return W @ x["q"], {"W": W, "M": M}


def sum_normalised_elu(x: Tensor) -> Tensor:
    return maps.sum_normalize(maps.elu1(x))


def delta_delta(x: Values, p: Values, s: Values) -> Result:
    W1 = corrected(s["W1"], x["beta"], x["v"], sum_normalised_elu(x["k"]))
    r = W1 @ sum_normalised_elu(x["q"])
    D = s["W2"].shape[0]
    q2, k2, v2 = maps.softmax(r[:D]), maps.softmax(r[D : 2 * D]), r[2 * D : 3 * D]
    W2 = corrected(s["W2"], torch.sigmoid(r[3 * D]), v2, k2)
    return W2 @ q2, {"W1": W1, "W2": W2}


def _f_is_k(s: dict[str, int]) -> int:
    return s["K"]


def _f_is_2k(s: dict[str, int]) -> int:
    return 2 * s["K"]


BETA = {**QKV, "beta": ""}
RATE = {"beta": "rate"}
KEYED = {"k": "key", "q": "key", "beta": "rate"}  # keys that no map normalises: length near 1

DELTA = (
    Witness(
        "delta",
        plain(dpfp_normalised, scale=False),
        BETA,
        {"W": "V F"},
        "V",
        derived={"F": _f_is_2k},
        draw=RATE,
    ),
    Witness(
        "deltanet",
        plain(maps.l2norm, scale=True),
        BETA,
        {"W": "V F"},
        "V",
        derived={"F": _f_is_k},
        draw=RATE,
    ),
    Witness(
        "delta_attention_normalized",
        attention_normalised,
        BETA,
        {"W": "V F", "z": "F"},
        "V",
        derived={"F": _f_is_2k},
        draw={**RATE, "z": "positive"},
    ),
    Witness(
        "gated_delta",
        gated,
        {**QKV, "g": "", "beta": ""},
        {"W": "V F"},
        "V",
        derived={"F": _f_is_k},
        draw={**RATE, "g": "decay"},
    ),
    Witness(
        "kda",
        gated,
        {**QKV, "g": "K", "beta": ""},
        {"W": "V F"},
        "V",
        derived={"F": _f_is_k},
        draw={**RATE, "g": "decay"},
    ),
    Witness(
        "gdn2",
        gdn2,
        {**QKV, "g": "K", "b": "K", "w": "V"},
        {"W": "V K"},
        "V",
        draw={**KEYED, "g": "decay", "b": "rate", "w": "rate"},
    ),
    Witness(
        "comba",
        comba,
        {**QKV, "p": "K", "g": "", "beta": ""},
        {"W": "V K"},
        "V",
        draw={**KEYED, "p": "key", "g": "decay"},
    ),
    Witness(
        "delta_product",
        delta_product,
        {"q": "K", "k": "N K", "v": "N V", "g": "", "beta": "N"},
        {"W": "V F"},
        "V",
        derived={"F": _f_is_k},
        draw={**RATE, "g": "decay"},
    ),
    Witness(
        "oja",
        oja,
        {**QKV, "gv": "V", "beta": ""},
        {"W": "V K"},
        "V",
        draw={"v": "key", "gv": "decay", "beta": "rate"},
    ),
    Witness(
        "longhorn",
        longhorn,
        {"q": "K", "k": "K", "x": "V", "beta": "V"},
        {"W": "V K"},
        "V",
        params={"D": "V"},
        draw=KEYED,
    ),
    Witness(
        "momentum_delta",
        momentum_delta,
        {**QKV, "p": "K", "g": "", "mu": "", "beta": "", "eta": ""},
        {"W": "V K", "M": "V K"},
        "V",
        draw={**KEYED, "p": "key", "g": "decay", "mu": "decay", "eta": "rate"},
    ),
    Witness(
        "titans",
        titans,
        {**QKV, "alpha": "", "eta": "", "theta": ""},
        {"W": "V K", "M": "V K"},
        "V",
        draw={"k": "key", "q": "key", "alpha": "rate", "eta": "rate", "theta": "rate"},
    ),
    Witness(
        "delta_delta",
        delta_delta,
        {"q": "K", "k": "K", "v": "E", "beta": ""},
        {"W1": "E K", "W2": "D D"},
        "D",
        derived={"E": lambda s: 3 * s["D"] + 1},
        draw=RATE,
    ),
)
