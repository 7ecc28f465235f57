"""The functions of the rule language on torch tensors, for the second evaluator."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class View:
    """A vector seen as a matrix: along the last axis (`row`) or along the first (`col`)."""

    vector: Tensor
    along: int

    def matrix(self) -> Tensor:
        return self.vector[None, :] if self.along == 1 else self.vector[:, None]


def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Applies to numbers, scalars, arrays of one shape, and views."""

    def apply(*args: Any) -> Any:
        views = [a for a in args if isinstance(a, View)]
        if not views:
            return function(*args)
        others = [a for a in args if isinstance(a, Tensor) and a.dim() == 2]
        if not others and len({v.along for v in views}) == 1:
            plain = [a.vector if isinstance(a, View) else a for a in args]
            return View(function(*plain), views[0].along)
        return function(*[a.matrix() if isinstance(a, View) else a for a in args])

    return apply


def as_tensor(x: Any, like: Tensor | None = None) -> Tensor:
    """Python numbers become scalars of the dtype that the formulas compute in."""
    return (
        x
        if isinstance(x, Tensor)
        else torch.tensor(x, dtype=torch.float64 if like is None else like.dtype)
    )


def of_tensor(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Element-wise function of tensors that also takes Python numbers."""

    def apply(*args: Any) -> Tensor:
        like = next((a for a in args if isinstance(a, Tensor) and a.is_floating_point()), None)
        return function(*[as_tensor(a, like) for a in args])

    return elementwise(apply)


def choose(condition: Any, a: Any, b: Any) -> Tensor:
    like = next((x for x in (a, b) if isinstance(x, Tensor)), None)
    condition = condition if isinstance(condition, Tensor) else torch.tensor(bool(condition))
    return torch.where(condition, as_tensor(a, like), as_tensor(b, like))


def clamp(x: Tensor, lo: float, hi: float) -> Tensor:
    return torch.clamp(as_tensor(x), lo, hi)


SAME_NAME = (torch.exp, torch.log, torch.log1p, torch.expm1, torch.sqrt, torch.rsqrt, torch.abs)
SAME_NAME += (torch.sign, torch.sin, torch.cos, torch.tanh, torch.sigmoid, torch.square)
ELEMENTWISE: dict[str, Callable[..., Any]] = {f.__name__: of_tensor(f) for f in SAME_NAME} | {
    "logsigmoid": of_tensor(F.logsigmoid),
    "softplus": of_tensor(lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    "relu": of_tensor(torch.relu),
    "elu": of_tensor(F.elu),
    "silu": of_tensor(F.silu),
    "gelu": of_tensor(lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2),
    "maximum": of_tensor(torch.maximum),
    "minimum": of_tensor(torch.minimum),
    "clamp": elementwise(clamp),
    "where": elementwise(choose),
    "stop_gradient": of_tensor(Tensor.detach),
}


def matmul(a: Tensor, b: Tensor) -> Tensor:
    letters = {(2, 1): "ij,j->i", (1, 2): "i,ij->j", (2, 2): "ij,jk->ik"}
    return torch.einsum(letters[a.dim(), b.dim()], a, b)


def _axes(x: Tensor, axis: int | None) -> tuple[int, ...]:
    return tuple(range(x.dim())) if axis is None else (axis % x.dim(),)


def _norm(x: Tensor, axis: int | None = None) -> Tensor:
    squares = (x * x).sum(_axes(x, axis))
    safe = torch.where(squares > 0, squares, torch.ones_like(squares))
    return torch.where(squares > 0, safe.sqrt(), torch.zeros_like(squares))


def _keep(reduction: str) -> Callable[[Tensor, int | None], Tensor]:
    """A reduction that keeps its axis with length 1, for what normalises along it."""

    def apply(x: Tensor, axis: int | None) -> Tensor:
        return getattr(x, reduction)(_axes(x, axis), keepdim=True)

    return apply


_sum, _mean, _max = _keep("sum"), _keep("mean"), _keep("amax")


def _softmax(x: Tensor, axis: int | None = None) -> Tensor:
    e = torch.exp(x - _max(x, axis).detach())
    return e / _sum(e, axis)


def _layernorm(x: Tensor, eps: float = 1e-5, axis: int | None = None) -> Tensor:
    centred = x - _mean(x, axis)
    return centred / torch.sqrt(_mean(centred**2, axis) + eps)


REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": lambda x, axis=None: x.sum(_axes(x, axis)),
    "mean": lambda x, axis=None: x.mean(_axes(x, axis)),
    "max": lambda x, axis=None: x.amax(_axes(x, axis)),
    "min": lambda x, axis=None: x.amin(_axes(x, axis)),
    "norm": _norm,
    "softmax": _softmax,
    "l2norm": lambda x, eps=1e-6, axis=None: x * torch.rsqrt(_sum(x**2, axis) + eps),
    "sum_normalize": lambda x, eps=0, axis=None: x / (_sum(x, axis) + eps),
    "layernorm": _layernorm,
    "rmsnorm": lambda x, eps=1e-6, axis=None: x * torch.rsqrt(_mean(x**2, axis) + eps),
}


def concat(*parts: Any) -> Tensor:
    like = next(p for p in parts if isinstance(p, Tensor))
    tensors = [as_tensor(p, like) for p in parts]
    return torch.cat([p.reshape(1) if p.dim() == 0 else p for p in tensors])


STRUCTURE: dict[str, Callable[..., Any]] = {
    "outer": lambda a, b: a[:, None] * b[None, :],
    "dot": lambda a, b: (a * b).sum(),
    "diag": torch.diag,
    "row": lambda a: View(a, 1),
    "col": lambda a: View(a, 0),
    "einsum": lambda equation, *arrays: torch.einsum(equation, *arrays),
    "concat": concat,
    "roll": lambda x, by: x[(torch.arange(x.shape[0]) - by) % x.shape[0]],
    "stack": lambda *parts: torch.stack(parts),
    "flatten": lambda x: x.reshape(-1),
}
