"""Element-wise functions of the language in Triton: direct calls, or small helpers of the module.

Helpers use only `tl.exp`, `tl.log` and arithmetic, so that they mean the same on every device;
series take over where the direct formula cancels.
"""

from __future__ import annotations

import re

DIRECT = {
    "exp": "tl.exp",
    "log": "tl.log",
    "sqrt": "tl.sqrt",
    "rsqrt": "tl.rsqrt",
    "abs": "tl.abs",
    "sin": "tl.sin",
    "cos": "tl.cos",
    "erf": "tl.erf",
}

HELPERS = {
    "wrap": '''
def wrap(i, n):
    """i modulo n, never negative."""
    r = i % n
    return tl.where(r < 0, r + n, r)
''',
    "square": """
def square(x):
    return x * x
""",
    "sign": """
def sign(x):
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0))
""",
    "sigmoid": """
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))
""",
    "expm1": """
def expm1(x):
    series = x * (1 / 720 + x * (1 / 5040 + x * (1 / 40320)))
    series = x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + series)))))
    return tl.where(tl.abs(x) < 0.4, series, tl.exp(x) - 1.0)
""",
    "log1p": """
def log1p(x):
    s = x / (2.0 + x)  # log(1 + x) = 2 artanh(x / (2 + x))
    q = s * s
    series = 1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13)))
    series = 2.0 * s * (1.0 + q * (1 / 3 + q * (1 / 5 + q * series)))
    return tl.where((x > -0.4) & (x < 0.6), series, tl.log(1.0 + x))
""",
    "tanh": """
def tanh(x):
    m = expm1(-2.0 * tl.abs(x))
    r = -m / (2.0 + m)
    return tl.where(x < 0.0, -r, r)
""",
    "softplus": """
def softplus(x):
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))
""",
    "logsigmoid": """
def logsigmoid(x):
    return tl.minimum(x, 0.0) - log1p(tl.exp(-tl.abs(x)))
""",
    "relu": """
def relu(x):
    return tl.where(x <= 0.0, 0.0, x)
""",
    "elu": """
def elu(x):
    return tl.where(x > 0.0, x, expm1(tl.where(x > 0.0, 0.0, x)))
""",
    "silu": """
def silu(x):
    return x * sigmoid(x)
""",
    "gelu": """
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
""",
    "maximum": """
def maximum(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
    "minimum": """
def minimum(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
    "clamp": """
def clamp(x, low, high):
    return minimum(maximum(x, low), high)
""",
    "power": '''
def power(x, y):
    """x ** y; of a negative x only for whole y."""
    size = tl.where(y == 0.0, 1.0, tl.exp(y * tl.log(tl.abs(x))))
    odd = tl.abs(y - 2.0 * tl.floor(y / 2.0)) == 1.0
    whole = tl.where(y == tl.floor(y), tl.where(odd, -size, size), float("nan"))
    return tl.where(x < 0.0, whole, size)
''',
}


def helper_texts(used: set[str]) -> list[str]:
    """The definitions of the used helpers and of those that they call, callees first."""
    wanted, queue = set(), sorted(used)
    while queue:
        name = queue.pop()
        if name in HELPERS and name not in wanted:
            wanted.add(name)
            queue += re.findall(r"(?<![\w.])(\w+)\(", HELPERS[name])
    order = [name for name in HELPERS if name in wanted]
    return ["@triton.jit\n" + HELPERS[name].strip() for name in order]
