"""Witnesses of the rules whose transition or inputs depend nonlinearly on the state."""

import torch
from torch import Tensor

from witnesses import maps
from witnesses.delta import RATE, corrected, sum_normalised_elu
from witnesses.linear import QKV
from witnesses.table import Values, Witness

Result = tuple[Tensor, dict[str, Tensor]]


def additive_tanh(x: Values, p: Values, s: Values) -> Result:
    W = torch.tanh(s["W"] + torch.outer(x["v"], x["k"]))
    return W @ x["q"], {"W": W}


def clipped(A: Tensor) -> Tensor:
    """A / max(1, Frobenius norm)."""
    norm = torch.sqrt((A * A).sum())
    return torch.where(norm > 1, A / norm, A)


def fwm2(x: Values, p: Values, s: Values) -> Result:
    W = clipped(corrected(s["W"], x["beta"], x["v"], torch.tanh(x["k"])))
    return maps.layernorm(W @ torch.tanh(x["q"])), {"W": W}


def fwm(x: Values, p: Values, s: Values) -> Result:
    F = s["F"]
    old = torch.einsum("i,j,ijk->k", x["s"], x["r"], F)
    write = torch.einsum("i,j,k->ijk", x["s"], x["r"], x["u"] - old)
    F = clipped(F + x["b"] * write)
    n = x["n0"]
    for e in (x["e1"], x["e2"], x["e3"]):
        n = maps.layernorm(torch.einsum("j,k,jkl->l", n, e, F))
    return n, {"F": F}


def delta_pair(x: Values, s: Values, tail: str) -> tuple[Tensor, Tensor, Tensor]:
    """The feed-forward and the recurrent fast matrix of one gate, and the read of the first."""
    W = corrected(s[f"W{tail}"], x[f"beta{tail}"], x[f"v{tail}"], sum_normalised_elu(x[f"k{tail}"]))
    kr = maps.softmax(x[f"kr{tail}"])
    R = corrected(s[f"R{tail}"], x[f"betar{tail}"], x[f"vr{tail}"], kr)
    return W, R, W @ sum_normalised_elu(x[f"q{tail}"])


def delta_rnn(x: Values, p: Values, s: Values) -> Result:
    W, R, z = delta_pair(x, s, "")
    h = z + R @ maps.softmax(s["h"])
    return h, {"W": W, "R": R, "h": h}


def delta_lstm(x: Values, p: Values, s: Values) -> Result:
    query = maps.softmax(s["h"])
    states, gates = {}, {}
    for gate in "iuo":
        W, R, z = delta_pair(x, s, f"_{gate}")
        states |= {f"W_{gate}": W, f"R_{gate}": R}
        gates[gate] = R @ query + z
    i, o = torch.sigmoid(gates["i"]), torch.sigmoid(gates["o"])
    c = i * gates["u"] + (1 - i) * s["c"]
    h = c * o
    return h, {**states, "h": h, "c": c}


def recurrent_delta(x: Values, p: Values, s: Values) -> Result:
    g = torch.tanh(s["y"])
    q = maps.softmax(x["q"] + p["Rq"] @ g)
    k = maps.softmax(x["k"] + p["Rk"] @ g)
    v = x["v"] + p["Rv"] @ g
    W = corrected(s["W"], torch.sigmoid(x["beta"] + (p["rb"] * g).sum()), v, k)
    y = W @ q
    return y, {"W": W, "y": y}


def srwm(x: Values, p: Values, s: Values) -> Result:
    """Every matrix is read before any is written; each learns its own answer at q for the key k."""
    y = s["Wy"] @ x["x"]
    q, k = maps.softmax(s["Wq"] @ x["x"]), maps.softmax(s["Wk"] @ x["x"])
    rates = torch.sigmoid(s["wb"] @ x["x"])
    new = {
        name: s[name] + rates[n] * torch.outer(s[name] @ q - s[name] @ k, k)
        for n, name in enumerate(("Wy", "Wq", "Wk", "wb"))
    }
    return y, new


def elstm(x: Values, p: Values, s: Values) -> Result:
    c = s["c"]
    z = torch.tanh(x["z"] + p["wz"] * c + p["bz"])
    f = torch.sigmoid(x["f"] + p["wf"] * c + p["bf"])
    c = f * c + (1 - f) * z
    return c, {"c": c}


def ttt_linear(x: Values, p: Values, s: Values) -> Result:
    """One gradient step on the reconstruction loss; the gradient is left to autograd."""
    target = x["v"] - x["k"]

    def loss(W: Tensor, c: Tensor) -> Tensor:
        error = p["w"] * maps.layernorm(W @ x["k"] + c) + p["b"] - target
        return (error * error).sum() / 2

    dW, dc = torch.func.grad(loss, argnums=(0, 1))(s["W"], s["c"])
    W, c = s["W"] - x["eta"] * dW, s["c"] - x["eta"] * dc
    o = W @ x["q"] + c
    return o + maps.layernorm(o) * p["w"] + p["b"], {"W": W, "c": c}


PAIR = {"q": "D", "k": "D", "v": "D", "kr": "D", "vr": "D", "beta": "", "betar": ""}
LSTM_INPUTS = {f"{name}_{gate}": dims for gate in "iuo" for name, dims in PAIR.items()}
LSTM_STATES = {f"{name}_{gate}": "D D" for gate in "iuo" for name in "WR"}

RECURRENT = (
    Witness("fwp_additive_tanh", additive_tanh, QKV, {"W": "V K"}, "V", draw={"W": "small"}),
    Witness(
        "fwm2",
        fwm2,
        {**QKV, "beta": ""},
        {"W": "V F"},
        "V",
        derived={"F": lambda s: s["K"]},
        draw=RATE,
    ),
    Witness(
        "fwm",
        fwm,
        {"s": "D", "r": "D", "u": "D", "b": "", "n0": "D", "e1": "D", "e2": "D", "e3": "D"},
        {"F": "D D D"},
        "D",
        draw={"b": "rate"},
    ),
    Witness(
        "delta_rnn",
        delta_rnn,
        PAIR,
        {"W": "D D", "R": "D D", "h": "D"},
        "D",
        draw={"beta": "rate", "betar": "rate"},
    ),
    Witness(
        "delta_lstm",
        delta_lstm,
        LSTM_INPUTS,
        {**LSTM_STATES, "h": "D", "c": "D"},
        "D",
        draw={f"{name}_{gate}": "rate" for name in ("beta", "betar") for gate in "iuo"},
    ),
    Witness(
        "recurrent_delta",
        recurrent_delta,
        {"q": "D", "k": "D", "v": "D", "beta": ""},
        {"W": "D D", "y": "D"},
        "D",
        params={"Rq": "D D", "Rk": "D D", "Rv": "D D", "rb": "D"},
        draw={"Rq": "key", "Rk": "key", "Rv": "key", "rb": "key"},
    ),
    Witness(
        "srwm",
        srwm,
        {"x": "D"},
        {"Wy": "D D", "Wq": "D D", "Wk": "D D", "wb": "B D"},
        "D",
        derived={"B": lambda s: 4},
        draw=dict.fromkeys(("Wy", "Wq", "Wk", "wb"), "key"),
        learned=True,
    ),
    Witness(
        "elstm",
        elstm,
        {"z": "D", "f": "D"},
        {"c": "D"},
        "D",
        params={"wz": "D", "wf": "D", "bz": "D", "bf": "D"},
    ),
    Witness(
        "ttt_linear",
        ttt_linear,
        {"q": "D", "k": "D", "v": "D", "eta": ""},
        {"W": "D D", "c": "D"},
        "D",
        params={"w": "D", "b": "D"},
        draw={"eta": "small_rate", "k": "key", "W": "key"},
        learned=True,
    ),
)
