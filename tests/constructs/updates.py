"""Lines of an update: old states, sub-steps, params, positions, locals; and kinks."""

from collections.abc import Callable

import torch
from torch import Tensor

from constructs.table import Construct, formula, update
from witnesses.table import Values

outer = torch.outer


def write(x: Values) -> Tensor:
    return outer(x["v"], x["k"])


def two_steps(x: Values, p: Values, M: Tensor) -> Tensor:
    for i in range(2):
        key = x["ks"][i] * (x["ks"][i].square().sum() + 1e-6).rsqrt()
        M = M - x["b"][i] * outer(M @ key, key)
    return M + write(x)


def triangle(x: Values, p: Values, M: Tensor) -> Tensor:
    return M + sum(
        (i - j + 1) * outer(x["v"], x["k"].roll(j)) for i in range(2) for j in range(i + 1)
    )


def rolled(x: Values, p: Values, M: Tensor) -> Tensor:
    M = M + outer(x["v"], x["k"].roll(1))
    return M - outer((M @ x["k"]).roll(1), x["k"])


LINES = (
    update(
        "old_state",
        "W = 0.5 * W\nW = W + outer(v - prev(W) @ k, k)",
        lambda x, p, M: 0.5 * M + outer(x["v"] - M @ x["k"], x["k"]),
    ),
    update(
        "sub_steps",
        "for i in range(n):\n    kf = l2norm(ks[i])\n    W = W - b[i] * outer(W @ kf, kf)\n"
        "W = W + outer(v, k)",
        two_steps,
        inputs={"ks": "N K", "b": "N"},
        sections="constants: {n: 2}\n",
    ),
    update(
        "nested_loops",
        "for i in range(2):\n    for j in range(i + 1):\n"
        "        W = W + (i - j + 1) * outer(v, roll(k, j))",
        triangle,
    ),
    update(
        "params_and_buffers",
        "W = row(sigmoid(a)) * W + r * (A @ outer(v * u, k))",
        lambda x, p, M: p["a"].sigmoid() * M + p["r"] * (p["A"] @ outer(x["v"] * p["u"], x["k"])),
        params={"a": "K", "r": "", "A": "V V"},
        buffers={"u": "V"},
    ),
    update(
        "reset_by_where",
        "W = where(t % 4 == 0, outer(v, k), W + outer(v, k))",
        lambda x, p, M: torch.where(x["t"] % 4 == 0, 0.0, 1.0) * M + write(x),
    ),
    update(
        "running_mean",
        "W = W * (t / (t + 1)) + outer(v, k) / (t + 1)",
        lambda x, p, M: (M * x["t"] + write(x)) / (x["t"] + 1),
    ),
    update(
        "matrix_on_the_right",
        "W = W @ (eye(K) - b * outer(k, k)) + outer(v, k)",
        lambda x, p, M: M - x["b"] * outer(M @ x["k"], x["k"]) + write(x),
        inputs={"b": ""},
    ),
    update(
        "matrix_on_the_left",
        "W = (eye(V) - b * outer(v, v)) @ W + outer(v, k)",
        lambda x, p, M: M - x["b"] * outer(x["v"], x["v"] @ M) + write(x),
        inputs={"b": ""},
    ),
    update(
        "part_of_a_read",
        "u = W[:, 0:2] @ k[0:2]\nW = W + outer(v - u, k)",
        lambda x, p, M: M + outer(x["v"] - M[:, :2] @ x["k"][:2], x["k"]),
    ),
    update(
        "difference_of_a_state_and_itself",
        "W = A @ (W - W) + outer(v, k)",
        lambda x, p, M: p["A"] @ (M - M) + write(x),
        params={"A": "V V"},
    ),
    update("transposed_write", "W = W + outer(k, v).T", lambda x, p, M: M + write(x)),
    update(
        "unit_state",
        "W = W + outer(v, k)\nW = l2norm(W, axis=1)",
        lambda x, p, M: (M + write(x)) * ((M + write(x)).square().sum(1, True) + 1e-6).rsqrt(),
    ),
    update(
        "soft_state",
        "W = softmax(W + outer(v, k), axis=-1)",
        lambda x, p, M: (M + write(x)).softmax(-1),
    ),
    update(
        "rolled_keys",
        "W = W + outer(v, roll(k, 1))\nc = roll(W @ k, 1)\nW = W - outer(c, k)",
        rolled,
    ),
    update("largest", "W = maximum(W, outer(v, k))", lambda x, p, M: torch.maximum(M, write(x))),
    update(
        "stopped_read",
        "W = W + outer(v - stop_gradient(W @ k), k)",
        lambda x, p, M: M + outer(x["v"] - (M @ x["k"]).detach(), x["k"]),
    ),
    update(
        "locals",
        "a = k\na = 2 * a\nb = a\na = a + b\nW = W + outer(v, a)",
        lambda x, p, M: M + 4 * write(x),
    ),
)


def kink(name: str, text: str, meaning: Callable[[Tensor], Tensor]) -> Construct:
    """A formula of v at multiples of a half, 0 among them."""
    grid = dict.fromkeys("qkv", "grid")
    return formula(name, f"W @ q + {text}", lambda x, M, _: M @ x["q"] + meaning(x["v"]), draw=grid)


def safe(v: Tensor, ok: Tensor) -> Tensor:
    return torch.where(ok, v, 1.0)


KINKS = (
    kink(
        "kinks",
        "relu(v) + abs(v) + sign(v) + elu(v) + 2 * relu(-v)",
        lambda v: v.relu() + v.abs() + v.sign() + torch.nn.functional.elu(v) + 2 * (-v).relu(),
    ),
    kink(
        "ties_of_two",
        "maximum(v, -v) + 2 * maximum(v, 0) + minimum(0.5, v)",
        lambda v: (
            torch.maximum(v, -v)
            + 2 * torch.maximum(v, torch.zeros_like(v))
            + torch.minimum(torch.full_like(v, 0.5), v)
        ),
    ),
    kink(
        "bounds",
        "clamp(v, -0.5, 0.5) + 2 * clamp(v, 0, 1)",
        lambda v: v.clamp(-0.5, 0.5) + 2 * v.clamp(0, 1),
    ),
    kink("ties_of_many", "v * max(v) + v * min(v)", lambda v: v * v.amax() + v * v.amin()),
    kink("norm_of_zero", "norm(v - v) * v + norm(v * 0) + norm(v)", lambda v: v.norm() + 0 * v),
    kink(
        "powers_of_zero",
        "v ** 0 + v ** 1 + v ** 2 + v ** 3 + v ** 4 + v ** 2.0",
        lambda v: 1 + v + 2 * v**2 + v**3 + v**4,
    ),
    kink(
        "branch_not_taken",
        "where(v > 0, sqrt(v) + log(v) + v ** 0.5, v) + where(v != 0, 1 / v, 0)",
        lambda v: (
            torch.where(v > 0, 2 * safe(v, v > 0).sqrt() + safe(v, v > 0).log(), v)
            + torch.where(v != 0, 1 / safe(v, v != 0), 0.0)
        ),
    ),
)
UPDATES = (*LINES, *KINKS)
