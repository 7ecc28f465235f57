"""Matrix states that read each other's old values, in every way that two or three of them can."""

import pytest
import torch

import fwgen

UPDATES = {
    "exchange": ("A = prev(B) + outer(v, k)", "B = prev(A)"),
    "sums": ("A = 0.5 * A + 0.4 * prev(B) + outer(v, k)", "B = 0.5 * B + 0.4 * prev(A)"),
    "products": ("A = 0.5 * A * prev(B) + outer(v, k)", "B = 0.5 * B - tanh(prev(A))"),
    "reads": (
        "A = 0.5 * A + outer(v - prev(B) @ k, k)",
        "B = 0.5 * B + outer(v + prev(A) @ k, q)",
    ),
    "three": (
        "A = 0.5 * A + 0.3 * prev(B) + outer(v, k)",
        "B = 0.5 * B + 0.3 * prev(C)",
        "C = 0.5 * C + 0.3 * prev(A) - 0.3 * prev(B)",
    ),
}


def rule(lines: tuple[str, ...]) -> str:
    states = "".join(f"  {line[0]}: [V, K]\n" for line in lines)
    output = " + ".join(f"{line[0]} @ q" for line in lines)
    head = "name: circle\ninputs: {q: K, k: K, v: V}\nstate:\n"
    update = "".join(f"  {line}\n" for line in lines)
    return f"{head}{states}update: |\n{update}output: {output}\n"


@pytest.mark.parametrize("name", UPDATES)
def test_circle_of_matrices(name, tmp_path, monkeypatch, poisoned):
    monkeypatch.setenv("FWGEN_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "circle.yaml"
    path.write_text(rule(UPDATES[name]))
    op = fwgen.compile(path)
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": 4, "k": 4, "v": 3}
    inputs = {
        n: torch.randn(2, 37, 2, size, generator=generator, dtype=torch.float64) / size
        for n, size in shapes.items()
    }
    results = []
    for backend in ("cpu", "reference"):
        tensors = {n: t.clone().requires_grad_() for n, t in inputs.items()}
        y, final = op(**tensors, output_final_state=True, backend=backend)
        assert final is not None
        total = y.sin().sum() + sum(state.cos().sum() for state in final.values())
        total.backward()
        results.append([y.detach(), *final.values(), *(t.grad for t in tensors.values())])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
