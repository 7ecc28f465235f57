"""Witnesses of the decay family: the state fades by gates that do not depend on it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from witnesses.linear import QKV
from witnesses.table import Values, Witness

Result = tuple[Tensor, dict[str, Tensor]]


def retnet(x: Values, p: Values, s: Values) -> Result:
    W = torch.exp(p["gamma_log"]) * s["W"] + torch.outer(x["v"], x["k"])
    return W @ x["q"] / x["q"].shape[0] ** 0.5, {"W": W}


def log_gated(x: Values, p: Values, s: Values) -> Result:
    """Simple GLA (g a scalar) and GLA (g per key channel: columns of W fade)."""
    W = s["W"] * torch.exp(x["g"]) + torch.outer(x["v"], x["k"])
    return W @ x["q"] / x["q"].shape[0] ** 0.5, {"W": W}


def mamba2(x: Values, p: Values, s: Values) -> Result:
    decay = torch.exp(-torch.exp(p["A_log"]) * x["dt"])
    W = decay * s["W"] + torch.outer(x["dt"] * x["x"], x["B"])
    return W @ x["C"] + p["D"] * x["x"], {"W": W}


def hgrn2(x: Values, p: Values, s: Values) -> Result:
    W = s["W"] * x["f"] + torch.outer(x["v"], 1 - x["f"])
    return W @ x["q"], {"W": W}


def rwkv6(x: Values, p: Values, s: Values) -> Result:
    """Read before the write, with a bonus u for the token's own pair."""
    seen = s["W"] + torch.outer(x["v"], p["u"] * x["k"])
    W = s["W"] * torch.exp(x["g"]) + torch.outer(x["v"], x["k"])
    return seen @ x["r"] / x["r"].shape[0] ** 0.5, {"W": W}


def rwkv7(x: Values, p: Values, s: Values) -> Result:
    W = s["W"] * torch.exp(x["g"]) + torch.outer(s["W"] @ x["a"], x["b"])
    W = W + torch.outer(x["v"], x["k"])
    return W @ x["r"], {"W": W}


def mlstm(x: Values, p: Values, s: Values) -> Result:
    kept = F.logsigmoid(x["f"]) + s["m"]
    m = torch.maximum(kept, x["i"])
    f, i = torch.exp(kept - m), torch.exp(x["i"] - m)
    W = f * s["W"] + i * torch.outer(x["v"], x["k"])
    n = f * s["n"] + i * x["k"]
    q = x["q"] / x["q"].shape[0] ** 0.5
    below = torch.maximum((n * q).sum().abs(), torch.exp(-m)) + 1e-6
    return W @ q / below, {"W": W, "n": n, "m": m}


def rwkv4(x: Values, p: Values, s: Values) -> Result:
    """Per channel, numerator a and denominator b scaled by e^-m."""
    k, v, m = x["k"], x["v"], s["m"]
    top = torch.maximum(m, p["u"] + k)
    old, new = torch.exp(m - top), torch.exp(p["u"] + k - top)
    y = (old * s["a"] + new * v) / (old * s["b"] + new)
    top = torch.maximum(p["w"] + m, k)
    old, new = torch.exp(p["w"] + m - top), torch.exp(k - top)
    return y, {"a": old * s["a"] + new * v, "b": old * s["b"] + new, "m": top}


def _galite_parts(x: Values) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features of k and q, the key gate (all of length R K) and the value gate."""
    fk = torch.outer(torch.relu(x["p1"]), torch.relu(x["k"])).reshape(-1)
    fq = torch.outer(torch.relu(x["p2"]), torch.relu(x["q"])).reshape(-1)
    gamma = torch.outer(torch.sigmoid(x["p3"]), torch.sigmoid(x["gamma"])).reshape(-1)
    return fk, fq, gamma, torch.sigmoid(x["b"])


def galite(x: Values, p: Values, s: Values) -> Result:
    fk, fq, gamma, b = _galite_parts(x)
    W = (1 - torch.outer(b, gamma)) * s["W"] + torch.outer(b * x["v"], gamma * fk)
    z = (1 - gamma) * s["z"] + gamma * fk
    return W @ fq / ((z * fq).sum() + 1e-5), {"W": W, "z": z}


def agalite(x: Values, p: Values, s: Values) -> Result:
    """GaLiTe with the matrix replaced by J pairs of traces, each turning at its own frequency."""
    fk, fq, gamma, b = _galite_parts(x)
    turn = torch.cos(p["omega"] * (x["t"] + 1))
    kt = (1 - gamma) * s["kt"] + torch.outer(turn, gamma * fk)
    vt = (1 - b) * s["vt"] + torch.outer(turn, b * x["v"])
    z = (1 - gamma) * s["z"] + gamma * fk
    J = turn.shape[0]
    y = vt.T @ (kt @ fq) / (2 * J * (z * fq).sum() + 1e-5)
    return y, {"kt": kt, "vt": vt, "z": z}


GALITE_INPUTS = {
    "q": "K", "k": "K", "v": "V", "b": "V", "gamma": "K", "p1": "R", "p2": "R", "p3": "R",
}  # fmt: skip


def _f_is_rk(s: dict[str, int]) -> int:
    return s["R"] * s["K"]


DECAY = (
    Witness(
        "retnet",
        retnet,
        QKV,
        {"W": "V K"},
        "V",
        params={"gamma_log": ""},
        draw={"gamma_log": "decay"},
    ),
    Witness("simple_gla", log_gated, {**QKV, "g": ""}, {"W": "V K"}, "V", draw={"g": "decay"}),
    Witness("gla", log_gated, {**QKV, "g": "K"}, {"W": "V K"}, "V", draw={"g": "decay"}),
    Witness(
        "mamba2",
        mamba2,
        {"C": "K", "B": "K", "x": "V", "dt": ""},
        {"W": "V K"},
        "V",
        params={"A_log": "", "D": ""},
        draw={"dt": "rate"},
    ),
    Witness("hgrn2", hgrn2, {"q": "K", "f": "K", "v": "V"}, {"W": "V K"}, "V", draw={"f": "rate"}),
    Witness(
        "rwkv6",
        rwkv6,
        {"r": "K", "k": "K", "v": "V", "g": "K"},
        {"W": "V K"},
        "V",
        params={"u": "K"},
        draw={"g": "decay"},
    ),
    Witness(
        "rwkv7",
        rwkv7,
        {"r": "K", "g": "K", "k": "K", "v": "V", "a": "K", "b": "K"},
        {"W": "V K"},
        "V",
        draw={"g": "decay", "a": "small", "b": "small"},
    ),
    Witness(
        "mlstm",
        mlstm,
        {**QKV, "i": "", "f": ""},
        {"W": "V K", "n": "K", "m": ""},
        "V",
    ),
    Witness(
        "rwkv4",
        rwkv4,
        {"k": "V", "v": "V"},
        {"a": "V", "b": "V", "m": "V"},
        "V",
        params={"w": "V", "u": "V"},
        draw={"w": "decay", "b": "positive"},
        start={"m": -1e38},
    ),
    Witness(
        "galite",
        galite,
        GALITE_INPUTS,
        {"W": "V F", "z": "F"},
        "V",
        derived={"F": _f_is_rk},
        draw={"z": "positive"},
    ),
    Witness(
        "agalite",
        agalite,
        GALITE_INPUTS,
        {"kt": "J F", "vt": "J V", "z": "F"},
        "V",
        buffers={"omega": "J"},
        derived={"F": _f_is_rk},
        draw={"z": "positive"},
        uses_position=True,
    ),
)
