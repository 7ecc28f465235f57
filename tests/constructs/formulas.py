"""Operators, functions and reductions in an output, with their meaning in PyTorch."""

import torch
import torch.nn.functional as F

from constructs.table import formula


def unit(x, axis, eps=1e-6):
    return x * (x.square().sum(axis, keepdim=True) + eps).rsqrt()


def scaled(x, axis, eps):
    return x * (x.square().mean(axis, keepdim=True) + eps).rsqrt()


def normalised(x, axis):
    share = x.square() / x.square().sum(axis, keepdim=True)
    layer = scaled(x - x.mean(axis, keepdim=True), axis, 1e-5)
    return x.softmax(axis) + layer + scaled(x, axis, 1e-6) + share


def reduced(x, axis):
    return x.square().sum(axis) + x.mean(axis) + x.amax(axis) * x.amin(axis) + x.norm(dim=axis)


VIEWS = (
    formula("row_view", "(row(q) * W) @ k", lambda x, W, _: (x["q"] * W) @ x["k"]),
    formula("col_view", "(col(v) * W) @ q", lambda x, W, _: (x["v"][:, None] * W) @ x["q"]),
    formula(
        "function_of_a_view", "(exp(row(q)) * W) @ k", lambda x, W, _: (x["q"].exp() * W) @ x["k"]
    ),
    formula(
        "row_with_col",
        "(row(q) + col(v)) @ k",
        lambda x, W, _: (x["q"][None] + x["v"][:, None]) @ x["k"],
    ),
    formula(
        "row_with_row", "(row(q) * row(k) * W) @ k", lambda x, W, _: (x["q"] * x["k"] * W) @ x["k"]
    ),
    formula(
        "view_below",
        "(W / (2 + row(square(q)))) @ k",
        lambda x, W, _: (W / (2 + x["q"] ** 2)) @ x["k"],
    ),
    formula(
        "view_in_where",
        "where(row(q) > 0, W, 0.5 * W) @ k + where(W > 0, row(q), W) @ k",
        lambda x, W, _: (
            torch.where(x["q"][None] > 0, W, 0.5 * W) @ x["k"]
            + torch.where(W > 0, x["q"].expand_as(W), W) @ x["k"]
        ),
    ),
    formula(
        "view_in_maximum",
        "maximum(W, col(v)) @ k",
        lambda x, W, _: torch.maximum(W, x["v"][:, None].expand_as(W)) @ x["k"],
    ),
)
PRODUCTS = (
    formula("matrix_out", "W", lambda x, W, _: W, "V K"),
    formula(
        "scaled_matrix_out", "(2 * row(q) - 1) * W", lambda x, W, _: (2 * x["q"] - 1) * W, "V K"
    ),
    formula(
        "number_out", "sum(W) + dot(W @ q, v)", lambda x, W, _: W.sum() + (W @ x["q"]) @ x["v"], ""
    ),
    formula("vector_by_matrix", "v @ W", lambda x, W, _: x["v"] @ W, "K"),
    formula("matrix_by_matrix", "(W @ W.T) @ v", lambda x, W, _: W @ W.T @ x["v"]),
    formula("square_matrix_out", "W.T @ W", lambda x, W, _: W.T @ W, "K K"),
    formula(
        "diag",
        "W @ diag(q) @ k + diag(v) @ (W @ q)",
        lambda x, W, _: W @ (x["q"] * x["k"]) + x["v"] * (W @ x["q"]),
    ),
    formula(
        "eye",
        "W @ (eye(K) - outer(k, k)) @ q + (eye(V) + W @ W.T) @ v",
        lambda x, W, _: W @ (x["q"] - x["k"] * (x["k"] @ x["q"])) + x["v"] + W @ W.T @ x["v"],
    ),
    formula(
        "size",
        "rsqrt(size(K)) * W @ q + size(V) * v",
        lambda x, W, _: W @ x["q"] / 5**0.5 + 3 * x["v"],
    ),
    formula(
        "powers",
        "W @ q ** 3 - v ** 2 + 2 ** 3 * v + (1 + square(v)) ** -1.5",
        lambda x, W, _: W @ x["q"] ** 3 - x["v"] ** 2 + 8 * x["v"] + (1 + x["v"] ** 2) ** -1.5,
    ),
    formula("signs", "-W @ -q - -v / 2 * 3", lambda x, W, _: W @ x["q"] + 1.5 * x["v"]),
    formula(
        "einsum",
        'einsum("ij,j,i->i", W, q, v) + einsum("ij,kj->ik", W, W) @ v + einsum(",i->i", sum(q), v)',
        lambda x, W, _: (W @ x["q"]) * x["v"] + W @ W.T @ x["v"] + x["q"].sum() * x["v"],
    ),
    formula("einsum_turned", 'einsum("ij->ji", W)', lambda x, W, _: W.T, "K V"),
    formula(
        "einsum_outer",
        'einsum("i,j,k->ijk", v, q, k)',
        lambda x, W, _: torch.einsum("i,j,k->ijk", x["v"], x["q"], x["k"]),
        "V K K",
    ),
)
REDUCTIONS = (
    *(
        formula(
            f"reductions_{name}",
            (
                "sum(square(W), axis=#) + mean(W, axis=#) + max(W, axis=#) * min(W, axis=#)"
                " + norm(W, axis=#)"
            ).replace("#", text),
            lambda x, W, _, axis=int(text): reduced(W, axis),
            "K" if text == "0" else "V",
        )
        for name, text in (("down", "0"), ("along", "1"), ("last", "-1"))
    ),
    *(
        formula(
            f"normalised_{name}",
            (
                "(softmax(W, axis=#) + layernorm(W, axis=#) + rmsnorm(W, axis=#)"
                " + sum_normalize(square(W), axis=#)) @ q"
            ).replace("#", text),
            lambda x, W, _, axis=int(text): normalised(W, axis) @ x["q"],
        )
        for name, text in (("down", "0"), ("along", "1"), ("last", "-1"))
    ),
    formula("unit_rows", "l2norm(W, axis=1) @ q", lambda x, W, _: unit(W, 1) @ x["q"]),
    formula("unit_columns", "l2norm(W, axis=0) @ q", lambda x, W, _: unit(W, 0) @ x["q"]),
    formula(
        "whole_reductions",
        "(sum(W) + mean(W) + max(W) * min(W) + norm(W)) * v",
        lambda x, W, _: (W.sum() + W.mean() + W.amax() * W.amin() + W.norm()) * x["v"],
    ),
    formula(
        "epsilons",
        "2 * l2norm(v, 0.1) + sum_normalize(square(v), eps=1) + rmsnorm(v, eps=0.5)",
        lambda x, W, _: (
            2 * unit(x["v"], 0, 0.1)
            + x["v"] ** 2 / (x["v"].square().sum() + 1)
            + scaled(x["v"], 0, 0.5)
        ),
    ),
)
ONE = {
    **{"exp": torch.exp, "expm1": torch.expm1, "abs": torch.abs, "sign": torch.sign},
    **{"sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "sigmoid": torch.sigmoid},
    **{"logsigmoid": F.logsigmoid, "softplus": F.softplus, "relu": F.relu, "elu": F.elu},
    **{"silu": F.silu, "gelu": F.gelu, "square": torch.square},
}
POSITIVE = {"log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "log1p": torch.log1p}
ELEMENTS = (
    formula(
        "functions",
        " + ".join([*(f"{n}(v)" for n in ONE), *(f"{n}(1 + square(W)) @ q" for n in POSITIVE)]),
        lambda x, W, _: (
            sum(f(x["v"]) for f in ONE.values())
            + sum(f(1 + W**2) @ x["q"] for f in POSITIVE.values())
        ),
    ),
    formula(
        "functions_of_a_matrix",
        "(" + " + ".join(f"{n}(W)" for n in ONE) + ") @ q",
        lambda x, W, _: sum(f(W) for f in ONE.values()) @ x["q"],
    ),
    formula(
        "functions_of_two",
        "clamp(W, -0.5, 0.5) @ q + maximum(v, q[0]) + minimum(v, 0.1) + stop_gradient(v) * v"
        " + clamp(v, q[0] - 1, q[0] + 1)",
        lambda x, W, _: (
            W.clamp(-0.5, 0.5) @ x["q"]
            + torch.maximum(x["v"], x["q"][0])
            + x["v"].clamp(max=0.1)
            + x["v"].detach() * x["v"]
            + torch.clamp(x["v"], x["q"][0] - 1, x["q"][0] + 1)
        ),
    ),
)
FORMULAS = (*VIEWS, *PRODUCTS, *REDUCTIONS, *ELEMENTS)
