"""States of every order, with start values, that feed each other, of sizes that are formulas."""

from collections.abc import Callable

import torch
from torch import Tensor

from constructs.table import QKV, Construct, W, rule
from witnesses.table import Values, Witness

outer = torch.outer
Cell = Callable[[Values, Values, Values], tuple[Tensor, dict[str, Tensor]]]


def cell(
    name: str,
    inputs: dict[str, str],
    states: dict[str, str],
    output: str,
    step: Cell,
    lines: str,
    read: str,
    more: str = "",
    state: str = "",
    sizes: dict[str, str] | None = None,
    **extra: object,
) -> Construct:
    """Any rule, from its step."""
    w = Witness(name, step, inputs, states, output, **extra)
    return rule(w, lines, read, more, state, sizes)


def third_order(x: Values, p: Values, s: Values):
    at = torch.einsum("ijk,i,j->k", s["F"], x["q"], x["v"])
    new = s["F"] + torch.einsum("i,j,k->ijk", x["q"], x["v"], x["c"] - at)
    return torch.einsum("ijk,i,j->k", new, x["q"], x["v"]), {"F": new}


def fourth_order(x: Values, p: Values, s: Values):
    new = 0.5 * s["F"] + torch.einsum("i,j,k,l->ijkl", *(x[n] for n in "qvcd"))
    return torch.einsum("ijkl,i,k->jl", new, x["q"], x["c"]) @ x["d"], {"F": new}


def squashed(x: Values, p: Values, s: Values):
    new = torch.tanh(x["g"].exp() * s["F"] + torch.einsum("i,j,k->ijk", *(x[n] for n in "qvc")))
    new = new / torch.clamp(new.norm(), min=1.0)
    parts = [new.sum(0), new.mean(-1), new.amax(1), new[0], new[0, 1], new[:, 0, 1], new[1:3, 0]]
    return torch.cat([part.flatten() for part in parts]), {"F": new}


def softened(x: Values, old: Tensor) -> Tensor:
    return (x["v"].sum() * old.sigmoid()).softmax(1).T @ (old @ x["k"])


def recurrent(x: Values, p: Values, s: Values):
    M = s["W"] + outer(x["v"] - s["W"] @ x["k"], x["k"])
    y = M @ (x["q"] + p["R"] @ s["y"].tanh())
    return y + s["y"], {"W": M, "y": y}


def starts(x: Values, p: Values, s: Values):
    M, z, n = s["W"] + outer(x["v"], x["k"]), torch.maximum(s["z"], x["k"]), s["n"] + x["k"].sum()
    return M @ (x["q"] * z) + n, {"W": M, "z": z, "n": n}


def swapped(x: Values, p: Values, s: Values):
    A, B = s["B"] + outer(x["v"], x["k"]), s["A"]
    return A @ x["q"] + B @ x["k"], {"A": A, "B": B}


def sized(x: Values, p: Values, s: Values):
    c, m = s["c"] + x["x"], s["m"] + x["z"] + outer(x["y"], x["w"][:4])
    parts = [c[4:5], c[:4] * m[1], c[12] * x["y"], m.flatten() * x["w"]]
    return torch.cat(parts), {"c": c, "m": m}


def maximal(x: Values, p: Values, s: Values):
    m = torch.maximum(s["m"] + x["g"], x["k"])
    n = (s["m"] + x["g"] - m).exp() * s["n"] + (x["k"] - m).exp()
    return n, {"m": m, "n": n}


def kept(x: Values, p: Values, s: Values):
    z = s["z"] + x["v"]
    return s["A"] @ (x["q"] + x["k"]) + z, {"A": s["A"], "z": z}


TOKEN = {"q": "K", "v": "V", "c": "D"}
STARTS = (
    "state:\n  W: {dims: [V, K], init: 0.5}\n  z: {dims: K, init: -1e2}\n"
    "  n: {dims: scalar, init: 2}\n"
)
STATES = (
    cell(
        "third_order",
        TOKEN,
        {"F": "K V D"},
        "D",
        third_order,
        'u = einsum("ijk,i,j->k", F, q, v)\nF = F + einsum("i,j,k->ijk", q, v, c - u)',
        'einsum("ijk,i,j->k", F, q, v)',
        draw={"q": "key", "v": "key"},
    ),
    cell(
        "fourth_order",
        {**TOKEN, "d": "N"},
        {"F": "K V D N"},
        "V",
        fourth_order,
        'F = 0.5 * F + einsum("i,j,k,l->ijkl", q, v, c, d)',
        'einsum("ijkl,i,k->jl", F, q, c) @ d',
    ),
    cell(
        "squashed_third_order",
        {**TOKEN, "g": ""},
        {"F": "K V D"},
        "Y",
        squashed,
        'F = tanh(exp(g) * F + einsum("i,j,k->ijk", q, v, c))\nF = F / maximum(1, norm(F))',
        "concat(flatten(sum(F, axis=0)), flatten(mean(F, axis=-1)), flatten(max(F, axis=1)),"
        " flatten(F[0]), F[0, 1], F[:, 0, 1], flatten(F[1:3, 0]))",
        derived={"Y": lambda n: 2 * n["V"] * n["D"] + n["K"] * (n["V"] + n["D"] + 1) + 3 * n["D"]},
    ),
    cell(
        "vector_and_number",
        {"a": "K", "f": "K"},
        {"c": "K", "n": ""},
        "K",
        lambda x, p, s: (
            (x["f"] * s["c"] + x["a"]) / (0.9 * s["n"] + 1),
            {"c": x["f"] * s["c"] + x["a"], "n": 0.9 * s["n"] + 1},
        ),
        "c = f * c + a\nn = 0.9 * n + 1",
        "c / n",
        draw={"n": "positive", "f": "rate"},
    ),
    cell(
        "recurrent_input",
        QKV,
        {"W": "V K", "y": "V"},
        "V",
        recurrent,
        "qr = q + R @ tanh(y)\nW = W + outer(v - prev(W) @ k, k)\ny = W @ qr",
        "y + prev(y)",
        params={"R": "K V"},
        draw={"k": "key"},
    ),
    cell(
        "start_values",
        QKV,
        {"W": "V K", "z": "K", "n": ""},
        "V",
        starts,
        "W = W + outer(v, k)\nz = maximum(z, k)\nn = n + sum(k)",
        "W @ (q * z) + n",
        state=STARTS,
        start={"W": 0.5, "z": -100.0, "n": 2.0},
    ),
    cell(
        "learned_starts",
        QKV,
        {"W": "V K", "z": "K", "n": ""},
        "V",
        starts,
        "W = W + outer(v, k)\nz = maximum(z, k)\nn = n + sum(k)",
        "W @ (q * z) + n",
        state="state:\n  W: {dims: [V, K], init: param}\n  z: {dims: K, init: param}\n"
        "  n: {dims: scalar, init: param}\n",
        learned=True,
    ),
    cell(
        "swapped_states",
        QKV,
        {"A": "V K", "B": "V K"},
        "V",
        swapped,
        "A = prev(B) + outer(v, k)\nB = prev(A)",
        "A @ q + B @ k",
    ),
    cell(
        "kept_state", QKV, {"A": "V K", "z": "V"}, "V", kept, "A = A\nz = z + v", "A @ (q + k) + z"
    ),
    cell(
        "sizes",
        {"x": "X", "y": "N", "z": "N D", "w": "ND"},
        {"c": "X", "m": "N D"},
        "Y",
        sized,
        "c = c + x\nm = m + z + outer(y, w[0:D])",
        "concat(c[D], c[0:D] * m[1], c[3*D] * y, flatten(m) * w)",
        sizes={"X": '"3*D + 1"', "ND": '"N*D"'},
        derived={
            "X": lambda n: 3 * n["D"] + 1,
            "ND": lambda n: n["N"] * n["D"],
            "Y": lambda n: 3 + n["D"] + n["N"] * n["D"],
        },
    ),
    cell(
        "running_maximum",
        {"k": "K", "g": "K"},
        {"m": "K", "n": "K"},
        "K",
        maximal,
        "m = maximum(m + g, k)\nn = exp(prev(m) + g - m) * n + exp(k - m)",
        "n",
        draw={"g": "decay", "n": "positive"},
    ),
    cell(
        "matrix_inputs",
        {"A": "V K", "q": "K", "M": "K K"},
        W,
        "V",
        lambda x, p, s: ((s["W"] @ x["M"] + x["A"]) @ x["q"], {"W": s["W"] @ x["M"] + x["A"]}),
        "W = W @ M + A",
        "W @ q",
        draw={"M": "small"},
    ),
    cell(
        "passed_on",
        {"q": "K", "k": "K"},
        {"z": "K"},
        "K",
        lambda x, p, s: (x["q"] + 0 * s["z"], {"z": x["k"]}),
        "z = k",
        "q",
    ),
    cell(
        "old_output",
        {"k": "K"},
        {"z": "K"},
        "K",
        lambda x, p, s: (s["z"], {"z": s["z"] + x["k"]}),
        "z = z + k",
        "prev(z)",
    ),
    cell(
        "kept_output",  # the backward wants the very array that is the output
        {"v": "V"},
        {"h": "V"},
        "V",
        lambda x, p, s: (s["h"].tanh(), {"h": x["v"]}),
        "h = v",
        "tanh(prev(h))",
    ),
    cell(
        "part_read_by_an_old_vector",
        QKV,
        {"W": "V K", "z": "K"},
        "V",
        lambda x, p, s: (
            (s["W"] + outer(x["v"], x["k"]))[:, :2] @ s["z"][1:3],
            {
                "W": s["W"] + outer(x["v"], x["k"]),
                "z": (s["W"] + outer(x["v"], x["k"])).mean(0).tanh(),
            },
        ),
        "W = W + outer(v, k)\nz = tanh(mean(W, axis=0))",
        "W[:, 0:2] @ prev(z)[1:3]",
    ),
    cell(
        "denominators",  # what the compiler calls the inverse of a sum is an adjoint's name, too
        QKV,
        {"W": "V K", "z": "K"},
        "V",
        lambda x, p, s: (
            x["v"],
            {"W": x["v"].sum() * s["W"].sigmoid(), "z": softened(x, s["W"])},
        ),
        "W = sum(v) * sigmoid(W)\nz = softmax(W, axis=1).T @ (prev(W) @ k)",
        "v",
    ),
)
