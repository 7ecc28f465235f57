"""Every function of the language where it has kinks, poles and NaN, beside PyTorch.

Run as `python edges.py BACKEND` (with TRITON_INTERPRET=1 for triton): one JSON line per expression,
`[expression, faults]`. Triton reads the switch on import, hence a process.
"""

import json
import sys
import tempfile
import warnings
from math import inf, nan
from pathlib import Path

import torch

import fwgen

UNARY = """
exp log log1p expm1 sqrt rsqrt abs sign sin cos tanh sigmoid logsigmoid softplus relu elu silu gelu
square
"""
EXPRESSIONS = (
    *(f"{name}(k)" for name in UNARY.split()),
    *("maximum(k, v)", "minimum(k, v)", "clamp(k, -1, 1)", "where(k > v, k, v)"),
    *("where(k <= v, 0, k)", "k ** 2", "k ** 3", "k ** 0.5", "k / v", "k * v"),
    *("max(k) * v", "min(k) * v", "norm(k) * v", "softmax(k)", "l2norm(k)"),
)
KEYS = (nan, 1.0, -1.0, 0.0, inf, -inf, 2.0, 0.5, 0.0, nan, 3.0, -0.0, 1e30, -1e30, 88.0, -100.0)
VALUES = (1.0, nan, -1.0, 0.0, 1.0, 1.0, inf, -inf, 1.0, nan, 3.0, 0.0, 2.0, 2.0, -1.0, 1.0)
RULE = "name: edge\ninputs: {k: K, v: K}\nstate: {h: K}\n"
NO_LIMIT = {"gelu(k)"}  # PyTorch's gelu is NaN at infinity


def faults(expression: str, backend: str, folder: Path) -> list[str]:
    """Where the backend's values or gradients are not those of the PyTorch reference."""
    file = folder / "edge.yaml"
    file.write_text(f"{RULE}update: h = {expression}\noutput: h\n")
    op = fwgen.compile(file)
    found = {}
    for name in (backend, "reference"):
        k, v = (torch.tensor(x).view(1, 1, 1, -1).requires_grad_() for x in (KEYS, VALUES))
        y, _ = op(k=k, v=v, backend=name)
        gradients = torch.autograd.grad(y.sum(), (k, v), allow_unused=True)
        zero = torch.zeros_like(k)
        found[name] = (y.detach(), *(zero if g is None else g for g in gradients))
    texts = []
    for what, own, theirs in zip(("y", "dk", "dv"), *found.values(), strict=True):
        differs = ~torch.isclose(own, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
        if expression in NO_LIMIT:
            differs &= torch.tensor(KEYS).isfinite()
        for n in differs.flatten().nonzero().flatten().tolist():
            seen, wanted = own.flatten()[n], theirs.flatten()[n]
            texts.append(f"{what} at k = {KEYS[n]}, v = {VALUES[n]}: {seen}, not {wanted}")
    return texts


if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)
    with tempfile.TemporaryDirectory() as name:
        for expression in EXPRESSIONS:
            print(json.dumps([expression, faults(expression, sys.argv[1], Path(name))]))
