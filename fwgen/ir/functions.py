"""The scalar operations of Step IR in numpy, element by element, stable at both ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sub": lambda x, y: x - y,
    "neg": lambda x: -x,
    "div": lambda x, y: np.true_divide(x, y),
    "pow": lambda x, y: np.power(np.asarray(x, dtype=np.result_type(x, np.float64)), y),
    "mod": np.mod,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "abs": np.abs,
    "sign": lambda x: np.where(x > 0, 1.0, np.where(x < 0, -1.0, 0.0)),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "logsigmoid": lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))),
    "square": lambda x: x * x,
    "erf": _erf,
    "stop_gradient": lambda x: x,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "select": np.where,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}
