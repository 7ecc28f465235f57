"""Feature maps: written out, short, nested, with constants and tensors, replaced at the call."""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from constructs.table import QKV, Construct, rule
from witnesses.table import Values, Witness

Features = Callable[[Tensor, Values], Tensor]


def dpfp(x: Tensor, nu: int = 1) -> Tensor:
    r = torch.cat([x, -x]).relu()
    return torch.cat([r * r.roll(i) for i in range(1, nu + 1)])


def share(x: Tensor, eps: float = 0) -> Tensor:
    return x / (x.sum() + eps)


def looped(x: Tensor) -> Tensor:
    return x.tanh().tanh() + x


def feature(
    name: str,
    lines: str,
    phi: Features,
    size: Callable[[dict[str, int]], int],
    *,
    write: str = "phi(k)",
    read: str = "phi(q)",
    more: str = "",
    set: object = None,
    maps: object = None,
    **extra: object,
) -> Construct:
    """A sum of outer products with features of k, read with those of q."""

    def step(x: Values, p: Values, s: Values):
        M = s["W"] + torch.outer(x["v"], phi(x["k"], p))
        return M @ phi(x["q"], p), {"W": M}

    w = Witness(name, step, QKV, {"W": "V F"}, "V", derived={"F": size}, **extra)
    section = f"feature_map:\n{lines}\n" if lines else ""
    made = rule(w, f"W = W + outer(v, {write})", f"W @ {read}", more + section)
    return replace(made, set=set or {}, maps=maps or {})


def same(n: dict[str, int]) -> int:
    return n["K"]


def times(count: int) -> Callable[[dict[str, int]], int]:
    return lambda n: count * n["K"]


def drawn(n: dict[str, int]) -> int:
    return n["M"]


MAPS = (
    feature("bare_map", "  phi: dpfp", lambda x, p: dpfp(x), times(2)),
    feature("map_with_keyword", "  phi: dpfp(nu=2)", lambda x, p: dpfp(x, 2), times(4)),
    feature(
        "map_with_constant",
        "  phi: dpfp(nu=n)",
        lambda x, p: dpfp(x, 3),
        times(6),
        more="constants: {n: 3}\n",
    ),
    feature(
        "constant_set",
        "  phi: dpfp(nu=n)",
        lambda x, p: dpfp(x, 2),
        times(4),
        more="constants: {n: 1}\n",
        set={"n": 2},
    ),
    feature(
        "nested_maps",
        "  phi: sum_normalize(dpfp(nu=2), eps=1e-6)",
        lambda x, p: share(dpfp(x, 2), 1e-6),
        times(4),
    ),
    feature(
        "sum_of_maps",
        "  phi: elu1 + 0.5 * relu1",
        lambda x, p: F.elu(x) + 1 + 0.5 * (x.relu() + 1e-3),
        same,
    ),
    feature(
        "map_of_a_map",
        "  phi(u): psi(2 * u)\n  psi(x): |\n    r = relu(concat(x, -x))\n    r / (sum(r) + 1)",
        lambda x, p: share(torch.cat([2 * x, -2 * x]).relu(), 1),
        times(2),
    ),
    feature(
        "function_as_map",
        "  phi: l2norm(eps=0.5)",
        lambda x, p: x * (x.square().sum() + 0.5).rsqrt(),
        same,
    ),
    feature(
        "map_with_loop",
        "  phi(x): |\n    r = x\n    for i in range(n):\n        r = tanh(r) + i * x\n    r",
        lambda x, p: looped(x),
        same,
        more="constants: {n: 2}\n",
    ),
    feature(
        "map_with_sizes",
        "  phi(x): x * rsqrt(size(K)) + size(V)",
        lambda x, p: x / 5**0.5 + 3,
        same,
    ),
    feature(
        "map_with_tensors",
        "  phi(x): A @ x + b",
        lambda x, p: p["A"] @ x + p["b"],
        drawn,
        params={"A": "M K"},
        buffers={"b": "M"},
    ),
    feature(
        "learned_map",
        "  phi: t2r",
        lambda x, p: (p["t2r_A"] @ x + p["t2r_b"]).relu(),
        drawn,
        params={"t2r_A": "M K", "t2r_b": "M"},
    ),
    feature(
        "random_map",
        "  phi: favor_positive(0.5 * x)",
        lambda x, p: 6**-0.5 * torch.exp(p["favor_positive_omega"] @ x / 2 - x.square().sum() / 8),
        drawn,
        buffers={"favor_positive_omega": "M K"},
    ),
    feature(
        "two_names_of_a_map",
        "  phi: favor_relu\n  psi: favor_relu",
        lambda x, p: 6**-0.5 * (p["favor_relu_omega"] @ x).relu() + 1e-3,
        drawn,
        write="psi(k)",
        buffers={"favor_relu_omega": "M K"},
    ),
    feature(
        "map_in_a_formula",
        "",
        lambda x, p: dpfp(x, 2),
        times(4),
        write="dpfp(k, nu=2)",
        read="dpfp(q, 2)",
    ),
    feature(
        "map_replaced",
        "  phi: elu1",
        lambda x, p: torch.cat([x.relu(), x]),
        times(2),
        maps={"phi": "concat(relu(x), x)"},
    ),
    feature(
        "map_replaced_by_a_block",
        "  phi(u): tanh(u)",
        lambda x, p: 2 * x.sin(),
        same,
        maps={"phi": "r = sin(u)\nr * 2"},
    ),
    feature(
        "map_replaced_by_a_shipped_one",
        "  phi(u): tanh(u)",
        lambda x, p: (p["t2r_A"] @ x + p["t2r_b"]).relu(),
        drawn,
        maps={"phi": "t2r"},
        params={"t2r_A": "M K", "t2r_b": "M"},
    ),
)
