"""A state whose gradient comes from its final value alone: the output does not read it."""

import pytest
import torch

import fwgen

RULE = """\
name: unread
inputs: {{k: K, v: V, g: scalar, a: K}}
state: {{W: [V, K]}}
update: W = {decay} * W + outer(v, k)
output: {output}
"""
DECAYS = [
    "exp(-abs(g))",
    "sigmoid(g)",
    "row(sigmoid(k))",
    "row(sigmoid(a))",
    "row(exp(-square(k)))",
]


@pytest.mark.parametrize("output", ["v", "W @ k", "W @ a"])
@pytest.mark.parametrize("decay", DECAYS)
def test_unread_state(decay, output, tmp_path):
    path = tmp_path / "unread.yaml"
    path.write_text(RULE.format(decay=decay, output=output))
    op, generator = fwgen.compile(path), torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    for T in (1, 2, 20):
        shapes = {"k": (4,), "v": (3,), "g": (), "a": (4,)}
        inputs = {n: draw(1, T, 2, *s).requires_grad_() for n, s in shapes.items()}
        start, weight = draw(1, 2, 3, 4).requires_grad_(), draw(1, 2, 3, 4)
        found = []
        for backend in ("cpu", "reference"):
            y, final = op(**inputs, initial_state=start, output_final_state=True, backend=backend)
            loss = y.square().sum() + (final["W"] * weight).sum()
            asked = [*inputs.values(), start]
            grads = torch.autograd.grad(loss, asked, allow_unused=True)
            pairs = zip(asked, grads, strict=True)
            found.append([torch.zeros_like(x) if d is None else d for x, d in pairs])
        for name, got, want in zip([*inputs, "W"], *found, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10, msg=f"{name}, T = {T}")
