"""Witnesses of the sum rule and its relatives: what is written does not depend on the state."""

from collections.abc import Callable

import torch
from torch import Tensor

from witnesses import maps
from witnesses.table import Step, Values, Witness

QKV = {"q": "K", "k": "K", "v": "V"}
W_AND_Z = {"W": "V F", "z": "F"}


def _f_is_k(s: dict[str, int]) -> int:
    return s["K"]


def _f_is_m(s: dict[str, int]) -> int:
    return s["M"]


def _f_is_2k(s: dict[str, int]) -> int:
    return 2 * s["K"]


def _f_is_2m(s: dict[str, int]) -> int:
    return 2 * s["M"]


def sum_rule(x: Values, p: Values, s: Values) -> tuple[Tensor, dict[str, Tensor]]:
    W = s["W"] + torch.outer(x["v"], maps.elu1(x["k"]))
    return W @ maps.elu1(x["q"]), {"W": W}


def normalised(
    phi_q: Callable[[Values, Values], Tensor],
    phi_k: Callable[[Values, Values], Tensor],
    denominator: Callable[[Tensor], Tensor],
) -> Step:
    """Sum rule with a normaliser z; maps see the token and the head's tensors."""

    def step(x: Values, p: Values, s: Values) -> tuple[Tensor, dict[str, Tensor]]:
        fq, fk = phi_q(x, p), phi_k(x, p)
        W = s["W"] + torch.outer(x["v"], fk)
        z = s["z"] + fk
        return (W @ fq) / denominator((z * fq).sum()), {"W": W, "z": z}

    return step


def plus_eps(n: Tensor) -> Tensor:
    return n + 1e-6


def at_least(bound: float) -> Callable[[Tensor], Tensor]:
    return lambda n: torch.where(n > bound, n, torch.full_like(n, bound))


def favor(x: Tensor, p: Values) -> Tensor:
    return maps.favor_positive(x / x.shape[0] ** 0.25, p["favor_positive_omega"])


def t2r(x: Tensor, p: Values) -> Tensor:
    return maps.t2r(x, p["t2r_A"], p["t2r_b"])


def learned_position(x: Tensor, p: Values, side: str) -> Tensor:
    """LeaPformer: a position from the rectified vector itself, then the cosine map."""
    r = torch.relu(x)
    hidden = torch.relu(p[f"A{side}"] @ r + p[f"a{side}"])
    position = torch.sigmoid((p[f"b{side}"] * hidden).sum() + p[f"c{side}"])
    return maps.cos_position(r, position)


def cheap_linear(x: Values, p: Values, s: Values) -> tuple[Tensor, dict[str, Tensor]]:
    C = s["C"] + torch.outer(x["h"], x["h"])
    return C @ x["q"], {"C": C}


def gated_cheap_linear(x: Values, p: Values, s: Values) -> tuple[Tensor, dict[str, Tensor]]:
    f = torch.sigmoid(p["Wf"] @ x["h"] + p["bf"]) * x["h"]
    C = x["alpha"] * s["C"] + x["beta"] * torch.outer(f, f)
    return C @ x["q"], {"C": C}


def rfa_gated(x: Values, p: Values, s: Values) -> tuple[Tensor, dict[str, Tensor]]:
    fq, fk = (maps.rfa(x[n], p["rfa_omega"]) for n in "qk")
    a = x["a"]
    W = a * s["W"] + (1 - a) * torch.outer(x["v"], fk)
    z = a * s["z"] + (1 - a) * fk
    return (W @ fq) / ((z * fq).sum() + 1e-6), {"W": W, "z": z}


LEAF_PARAMS = {
    f"{letter}{side}": dims
    for side in "qk"
    for letter, dims in (("A", "J K"), ("a", "J"), ("b", "J"), ("c", ""))
}

LINEAR = (
    Witness("sum", sum_rule, QKV, {"W": "V F"}, "V", derived={"F": _f_is_k}),
    Witness(
        "linear_attention",
        normalised(lambda x, p: maps.elu1(x["q"]), lambda x, p: maps.elu1(x["k"]), plus_eps),
        QKV,
        W_AND_Z,
        "V",
        derived={"F": _f_is_k},
        draw={"z": "positive"},
    ),
    Witness("cheap_linear", cheap_linear, {"q": "K", "h": "K"}, {"C": "K K"}, "K"),
    Witness(
        "gated_cheap_linear",
        gated_cheap_linear,
        {"q": "K", "h": "K", "alpha": "", "beta": ""},
        {"C": "K K"},
        "K",
        params={"Wf": "K K", "bf": "K"},
        draw={"alpha": "rate", "beta": "rate"},
    ),
    Witness(
        "performer",
        normalised(lambda x, p: favor(x["q"], p), lambda x, p: favor(x["k"], p), plus_eps),
        QKV,
        W_AND_Z,
        "V",
        buffers={"favor_positive_omega": "M K"},
        derived={"F": _f_is_m},
        draw={"z": "positive"},
    ),
    Witness(
        "rfa_gated",
        rfa_gated,
        {**QKV, "a": ""},
        W_AND_Z,
        "V",
        buffers={"rfa_omega": "M K"},
        derived={"F": _f_is_2m},
        # Small frequencies keep the cosines, and with them the denominator, away from 0.
        draw={"a": "rate", "rfa_omega": "small", "z": "positive"},
    ),
    Witness(
        "t2r",
        normalised(lambda x, p: t2r(x["q"], p), lambda x, p: t2r(x["k"], p), at_least(1e-2)),
        QKV,
        W_AND_Z,
        "V",
        params={"t2r_A": "M K", "t2r_b": "M"},
        derived={"F": _f_is_m},
        draw={"z": "positive"},
    ),
    Witness(
        "leaformer",
        normalised(
            lambda x, p: learned_position(x["q"], p, "q"),
            lambda x, p: learned_position(x["k"], p, "k"),
            at_least(0.1),
        ),
        QKV,
        W_AND_Z,
        "V",
        params=LEAF_PARAMS,
        derived={"F": _f_is_2k},
        draw={"z": "positive"},
    ),
    Witness(
        "cosformer",
        normalised(
            lambda x, p: maps.cos_position(torch.relu(x["q"]), x["p"]),
            lambda x, p: maps.cos_position(torch.relu(x["k"]), x["p"]),
            at_least(0.1),
        ),
        {**QKV, "p": ""},
        W_AND_Z,
        "V",
        derived={"F": _f_is_2k},
        draw={"p": "rate", "z": "positive"},
    ),
)
