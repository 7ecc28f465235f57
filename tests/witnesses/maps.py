"""The shipped feature maps as plain torch functions of one vector."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


def identity(x: Tensor) -> Tensor:
    return x


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x / torch.sqrt((x * x).sum() + eps)


def softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.max().detach())
    return e / e.sum()


def sum_normalize(x: Tensor, eps: float = 0.0) -> Tensor:
    return x / (x.sum() + eps)


def layernorm(x: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean()
    return centred / torch.sqrt((centred * centred).mean() + eps)


def elu1(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, torch.exp(torch.clamp(x, max=0)))


def relu1(x: Tensor) -> Tensor:
    return torch.relu(x) + 1e-3


def squared_relu(x: Tensor) -> Tensor:
    return torch.relu(x) ** 2


def silu_l2(x: Tensor) -> Tensor:
    return l2norm(x * torch.sigmoid(x))


def dpfp(x: Tensor, nu: int = 1) -> Tensor:
    r = torch.relu(torch.cat([x, -x]))
    n = r.shape[0]
    # roll_j(r)_i = r_{(i - j) mod n}, written with explicit indices.
    rolled = [r[(torch.arange(n) - j) % n] for j in range(1, nu + 1)]
    return torch.cat([r * other for other in rolled])


def favor_positive(x: Tensor, omega: Tensor) -> Tensor:
    return torch.exp(omega @ x - (x * x).sum() / 2) / math.sqrt(omega.shape[0])


def favor_hyperbolic(x: Tensor, omega: Tensor) -> Tensor:
    w, half = omega @ x, (x * x).sum() / 2
    both = torch.cat([torch.exp(w - half), torch.exp(-w - half)])
    return both / math.sqrt(2 * omega.shape[0])


def favor_trig(x: Tensor, omega: Tensor) -> Tensor:
    w = omega @ x
    waves = torch.cat([torch.cos(w), torch.sin(w)])
    return torch.exp((x * x).sum() / 2) * waves / math.sqrt(omega.shape[0])


def favor_relu(x: Tensor, omega: Tensor) -> Tensor:
    return torch.relu(omega @ x) / math.sqrt(omega.shape[0]) + 1e-3


def rfa(x: Tensor, omega: Tensor) -> Tensor:
    w = omega @ l2norm(x)
    return torch.cat([torch.sin(w), torch.cos(w)]) / math.sqrt(omega.shape[0])


def t2r(x: Tensor, A: Tensor, b: Tensor) -> Tensor:
    return torch.relu(A @ x + b)


def ff_kernel(x: Tensor, A: Tensor, b: Tensor) -> Tensor:
    return elu1(A @ x + b)


def glu_kernel(x: Tensor, A: Tensor, B: Tensor) -> Tensor:
    u = A @ x
    return u * torch.sigmoid(u) * (B @ x)


def taylor2(x: Tensor) -> Tensor:
    pairs = torch.outer(x, x).reshape(-1) / math.sqrt(2)
    return torch.cat([torch.ones_like(x[:1]), x, pairs])


def hedgehog(x: Tensor, A: Tensor) -> Tensor:
    u = A @ x
    return softmax(torch.cat([u, -u]))


def cos_position(x: Tensor, p: Tensor) -> Tensor:
    angle = math.pi / 2 * p
    return torch.cat([x * torch.sin(angle), x * torch.cos(angle)])


@dataclass(frozen=True)
class Map:
    """A shipped map: its function, the dims of its tensors in order, the size of what it gives."""

    apply: Callable[..., Tensor]
    features: Callable[[dict[str, int]], int]
    params: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)


def _same(s: dict[str, int]) -> int:
    return s["K"]


def _twice_k(s: dict[str, int]) -> int:
    return 2 * s["K"]


def _m(s: dict[str, int]) -> int:
    return s["M"]


def _twice_m(s: dict[str, int]) -> int:
    return 2 * s["M"]


_OMEGA = {"omega": "M K"}
_AFFINE = {"A": "M K", "b": "M"}

# Maps of one vector; `cos_position` has a second argument and is witnessed through `cosformer`.
FEATURE_MAPS = {
    "identity": Map(identity, _same),
    "l2norm": Map(l2norm, _same),
    "softmax": Map(softmax, _same),
    "sum_normalize": Map(sum_normalize, _same),
    "elu1": Map(elu1, _same),
    "relu1": Map(relu1, _same),
    "squared_relu": Map(squared_relu, _same),
    "silu_l2": Map(silu_l2, _same),
    "dpfp": Map(dpfp, _twice_k),
    "favor_positive": Map(favor_positive, _m, buffers=_OMEGA),
    "favor_hyperbolic": Map(favor_hyperbolic, _twice_m, buffers=_OMEGA),
    "favor_trig": Map(favor_trig, _twice_m, buffers=_OMEGA),
    "favor_relu": Map(favor_relu, _m, buffers=_OMEGA),
    "rfa": Map(rfa, _twice_m, buffers=_OMEGA),
    "t2r": Map(t2r, _m, params=_AFFINE),
    "ff_kernel": Map(ff_kernel, _m, params=_AFFINE),
    "glu_kernel": Map(glu_kernel, _m, params={"A": "M K", "B": "M K"}),
    "taylor2": Map(taylor2, lambda s: 1 + s["K"] + s["K"] ** 2),
    "hedgehog": Map(hedgehog, _twice_k, params={"A": "K K"}),
}
