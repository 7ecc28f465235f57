"""Decays: resets, exact zeros, any sign, above one, with and without a delta step after them."""

import torch
from torch import Tensor

from constructs.table import Construct, Update, update
from witnesses.table import Values


def written(x: Values, M: Tensor, again: str) -> Tensor:
    """A write to the decayed state, or a delta step on it."""
    target = x["v"] - M @ x["k"] if again else x["v"]
    return M + torch.outer(target, x["k"])


def decay(
    name: str, text: str, factor: Update, draw: str, dims: str = "", again: str = ""
) -> Construct:
    """`W = text * W + outer(v, k)` and, with `again`, a delta step after it; the gate is g."""

    def meaning(x: Values, p: Values, M: Tensor) -> Tensor:
        return written(x, factor(x, p, M) * M, again)

    line = "W = W + outer(v - W @ k, k)" if again else "W = W + outer(v, k)"
    lines = f"W = {text} * W\n{line}"
    return update(name + again, lines, meaning, inputs={"g": dims}, draw={"g": draw, "k": "key"})


TWICE = tuple(
    decay(*entry, again)
    for again in ("", "_then_delta")
    for entry in (
        ("reset", "where(g > 0, 0, 1)", lambda x, p, M: (x["g"] <= 0).to(M.dtype), "flag", ""),
        ("exact_zero", "exp(g)", lambda x, p, M: x["g"].exp(), "holes", ""),
        ("exact_zero_keys", "row(exp(g))", lambda x, p, M: x["g"].exp(), "holes", "K"),
        ("exact_zero_values", "col(exp(g))", lambda x, p, M: x["g"].exp()[:, None], "holes", "V"),
        (
            "sigmoid_of_minus_infinity",
            "row(sigmoid(g))",
            lambda x, p, M: x["g"].sigmoid(),
            "holes",
            "K",
        ),
        ("any_sign", "g", lambda x, p, M: x["g"], "grid", ""),
        ("any_sign_keys", "row(g)", lambda x, p, M: x["g"], "grid", "K"),
        ("any_sign_values", "col(g)", lambda x, p, M: x["g"][:, None], "grid", "V"),
    )
)
DECAYS = (
    *TWICE,
    decay("negative", "-exp(g)", lambda x, p, M: -x["g"].exp(), "holes"),
    decay("above_one", "(1.5 + exp(g))", lambda x, p, M: 1.5 + x["g"].exp(), "decay"),
    decay(
        "product",
        "exp(g) * sigmoid(-g)",
        lambda x, p, M: x["g"].exp() * (-x["g"]).sigmoid(),
        "decay",
    ),
    decay("one_less", "(1 - sigmoid(g))", lambda x, p, M: 1 - x["g"].sigmoid(), "normal"),
    decay("clamped", "clamp(g, 0, 1)", lambda x, p, M: x["g"].clamp(0, 1), "grid"),
    decay("powers", "g ** 3", lambda x, p, M: x["g"] ** 3, "grid"),
    decay("square_of_a_gate", "square(g)", lambda x, p, M: x["g"] ** 2, "grid"),
    decay(
        "root", "row(rsqrt(1 + exp(g)))", lambda x, p, M: (1 + x["g"].exp()).rsqrt(), "holes", "K"
    ),
)
