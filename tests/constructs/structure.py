"""Parts and joins of arrays, conditions and the position, in an output."""

import torch

from constructs.table import formula

STRUCTURE = (
    formula(
        "concat",
        "concat(W @ q, 1, sum(q), q[1:3], v)",
        lambda x, W, _: torch.cat(
            [W @ x["q"], x["q"].new_ones(1), x["q"].sum()[None], x["q"][1:3], x["v"]]
        ),
        "Y",
        derived={"Y": lambda n: 2 * n["V"] + 4},
    ),
    formula(
        "concat_of_many",
        "concat(v, concat(q * roll(k, i) for i in range(1, 3)), concat(q[i] for i in range(4)))",
        lambda x, W, _: torch.cat(
            [
                x["v"],
                *(x["q"] * x["k"].roll(i) for i in (1, 2)),
                *(x["q"][i : i + 1] for i in range(4)),
            ]
        ),
        "Y",
        derived={"Y": lambda n: n["V"] + 2 * n["K"] + 4},
    ),
    formula(
        "roll",
        "roll(q, 1) + roll(q, -1) * roll(k, 6) + roll(q, -7) + roll(k, K - 1)",
        lambda x, W, _: (
            x["q"].roll(1) + x["q"].roll(-1) * x["k"].roll(6) + x["q"].roll(-7) + x["k"].roll(4)
        ),
        "K",
    ),
    formula(
        "slices",
        "concat(q[0:2], q[2:], q[:1], q[-1], q[-2:], q[1:-1], q[K - 1], q[0:K - 1])",
        lambda x, W, _: (
            lambda q: torch.cat([q[0:2], q[2:], q[:1], q[-1:], q[-2:], q[1:-1], q[-1:], q[:-1]])
        )(x["q"]),
        "Y",
        derived={"Y": lambda n: 3 * n["K"] + 2},
    ),
    formula("rows", "W[0] + W[1, :] + W[2][0:K]", lambda x, W, _: W[0] + W[1] + W[2], "K"),
    formula(
        "columns",
        "W[:, 0] + W[:, 1:3] @ q[0:2] + W[0, 1] * v",
        lambda x, W, _: W[:, 0] + W[:, 1:3] @ x["q"][:2] + W[0, 1] * x["v"],
    ),
    formula(
        "row_beside_the_whole",
        "concat(W[0], flatten(W))",
        lambda x, W, _: torch.cat([W[0], W.flatten()]),
        "Y",
        derived={"Y": lambda n: n["K"] * (n["V"] + 1)},
    ),
    formula(
        "change",
        "flatten(W - prev(W))",
        lambda x, W, old: (W - old).flatten(),
        "Y",
        derived={"Y": lambda n: n["K"] * n["V"]},
    ),
    formula(
        "norm_of_the_change", "norm(W - prev(W)) * v", lambda x, W, old: (W - old).norm() * x["v"]
    ),
    formula(
        "stack", "stack(q, k) @ q", lambda x, W, _: torch.stack([x["q"], x["k"]]) @ x["q"], "N"
    ),
    formula(
        "stack_of_matrices",
        "stack(W, outer(v, q))",
        lambda x, W, _: torch.stack([W, torch.outer(x["v"], x["q"])]),
        "N V K",
    ),
    formula(
        "stack_of_many",
        "stack(i * v for i in range(2, 4)).T @ q[0:2]",
        lambda x, W, _: torch.stack([2 * x["v"], 3 * x["v"]]).T @ x["q"][:2],
    ),
    formula(
        "flatten",
        "flatten(outer(q, v)) + flatten(W.T)",
        lambda x, W, _: torch.outer(x["q"], x["v"]).flatten() + W.T.flatten(),
        "Y",
        derived={"Y": lambda n: n["K"] * n["V"]},
    ),
)
POSITION = (
    formula(
        "position",
        "where(t % 2 == 0, W @ q, v) * (t + 1) / 2 + where(t >= 4 and t < 8, 1, 0)",
        lambda x, W, _: (
            torch.where(x["t"] % 2 == 0, W @ x["q"], x["v"]) * (x["t"] + 1) / 2
            + torch.where((x["t"] >= 4) & (x["t"] < 8), 1.0, 0.0)
        ),
    ),
    formula(
        "position_in_sums",
        "where(not (t == 4 or t == 5), v, 2 * v) + (t % 3) * W @ q + sin(t / 10) * v",
        lambda x, W, _: (
            torch.where((x["t"] == 4) | (x["t"] == 5), 2.0, 1.0) * x["v"]
            + (x["t"] % 3) * (W @ x["q"])
            + torch.sin(x["t"] / 10) * x["v"]
        ),
    ),
    formula(
        "integers",
        "(t * t + 1) / (t + 2) * v + t ** 2 * v + (t - 9) % 4 * v + (2 * t) % 3 % 2 * (W @ q)",
        lambda x, W, _: (
            (x["t"] ** 2 + 1) / (x["t"] + 2) * x["v"]
            + (x["t"] ** 2 + (x["t"] - 9) % 4) * x["v"]
            + (2 * x["t"]) % 3 % 2 * (W @ x["q"])
        ),
    ),
    formula(
        "remainders_of_sizes",
        "(t % size(V) + size(K) % 3 + (t + size(K)) % 4) * (W @ q)",
        lambda x, W, _: (x["t"] % 3 + 2 + (x["t"] + 5) % 4) * (W @ x["q"]),
    ),
    formula(
        "conditions",
        "where(0 < q[0] < 1, v, 2 * v)"
        " + where(q[2] <= k[2] or v[0] > 0 and not v[1] > 0, W @ q, v)",
        lambda x, W, _: (
            torch.where((x["q"][0] > 0) & (x["q"][0] < 1), x["v"], 2 * x["v"])
            + torch.where(
                (x["q"][2] <= x["k"][2]) | ((x["v"][0] > 0) & ~(x["v"][1] > 0)), W @ x["q"], x["v"]
            )
        ),
    ),
    formula(
        "truth",
        "where(t % 2, v, 2 * v) + where(v, v, 1)"
        " + where(not t % 3, W @ q, v) + where(t > 4.5, v, 0)",
        lambda x, W, _: (
            torch.where(x["t"] % 2 != 0, x["v"], 2 * x["v"])
            + torch.where(x["v"] != 0, x["v"], 1.0)
            + torch.where(x["t"] % 3 == 0, W @ x["q"], x["v"])
            + torch.where(x["t"] > 4.5, x["v"], 0.0)
        ),
    ),
)
STRUCTURES = (*STRUCTURE, *POSITION)
