"""Matrix states that read each other and themselves, old and new, transposed: the token loop."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import fwgen

TERMS = """
{s}; 0.5 * {s}; 0.5 * {s}.T; tanh({s}); exp(-abs(g)) * {s}; sigmoid(row(k)) * {s}
sigmoid(col(k)) * {s}; 0.2 * prev({s}); 0.3 * prev({s}).T; 0.1 * {s} @ outer(k, k); 0.1 * {s} @ {r}
0.1 * {s} @ {r}.T; 0.1 * outer(prev({s}) @ k, k); 0.1 * outer({s}.T @ q, k)
0.1 * einsum("ij,j->ji", {s}, q)
"""
WRITES = "outer(v, k); b * outer(v - {s} @ k, k); outer(k, v); 0.1 * outer(h, k); outer(v, q)"
READS = "{s} @ q; prev({s}) @ q; {s}.T @ q; h"
RULE = """name: matrices
inputs: {{q: K, k: K, v: K, b: scalar, g: scalar}}
state: {{{states}, h: K}}
update: |
{update}
output: {output}
"""
KNOWN = {
    "an old one": "A = 0.9 * A + outer(v, k); B = 0.5 * B + 0.1 * prev(A)",
    "a new one": "A = 0.9 * A + outer(v, k); B = 0.5 * B + 0.1 * A + 0.1 * prev(B)",
    "after tanh": "A = tanh(A) + outer(v, k); B = 0.5 * B + 0.1 * A",
    "each other": "A = A + 0.1 * B + outer(v, k); B = B + 0.1 * prev(A)",
    "a circle": "A = 0.5 * A + 0.1 * prev(B).T + outer(v, k); B = 0.5 * B + 0.1 * prev(A).T",
    "transposed": "A = A.T + outer(v, k); B = 0.5 * (B + B.T) + outer(k, q)",
    "symmetric": "A = 0.5 * (A + A.T) + outer(v, k); A = 0.9 * A + 0.1 * B.T; B = 0.5 * B + A",
    "moved": "A = 0.1 * einsum('ij,j->ji', A, q) + outer(v, k); B = 0.5 * B + A @ B",
}


def options(text: str) -> list[str]:
    """The parts between semicolons and line ends."""
    return [part.strip() for line in text.strip().split("\n") for part in line.split(";")]


def drawn(seed: int) -> str:
    """A rule with one to three matrix states and a vector."""
    rng = random.Random(seed)
    names = ["A", "B", "C"][: rng.choice([1, 2, 2, 3])]

    def some(texts: str, own: str = "") -> str:
        state, other = rng.choice([own or rng.choice(names), rng.choice(names)]), rng.choice(names)
        return rng.choice(options(texts)).format(s=state, r=other)

    lines = []
    for name in rng.sample(names, len(names)):
        parts = [some(TERMS, name) for _ in range(rng.choice([1, 2, 2, 3]))]
        lines.append(f"  {name} = 0.5 * ({' + '.join([*parts, some(WRITES)])})")
        if rng.random() < 0.25:
            lines.append(f"  {name} = {name} + b * outer(v - {rng.choice(names)} @ k, k)")
    vector = f"h = 0.5 * h + 0.1 * {rng.choice(names)} @ k" if rng.random() < 0.6 else "h = v"
    lines.insert(rng.randrange(len(lines) + 1), f"  {vector}")
    output = " + ".join(some(READS) for _ in range(rng.choice([1, 2])))
    states = ", ".join(f"{name}: [K, K]" for name in names)
    return RULE.format(states=states, update="\n".join(lines), output=output)


def results(op: fwgen.CompiledRule, backend: str, K: int) -> dict[str, torch.Tensor]:
    """Output, final states and all gradients in float64."""
    generator = torch.Generator().manual_seed(K)

    def one(*shape: int) -> torch.Tensor:
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return (0.5 * drawn).requires_grad_()

    x = {n: one(1, 5, 2, *([K] if n in "qkv" else [])) for n in "qkvbg"}
    start = {n: one(*t.shape) for n, t in op.init_state(1, 2, {"K": K}).items()}
    y, final = op(**x, initial_state=start, output_final_state=True, backend=backend)
    weighted = [(t * torch.arange(1.0, t.numel() + 1).view(t.shape)).sum() for t in final.values()]
    loss = torch.stack([y.sin().sum(), *weighted]).sum()
    gradients = torch.autograd.grad(loss, [*x.values(), *start.values()], allow_unused=True)
    names = [f"d.{n}" for n in (*x, *start)]
    found = dict(zip(names, gradients, strict=True)) | {"y": y} | final
    return {n: t.detach() for n, t in found.items() if t is not None}


def check(text: str, folder: Path, K: int) -> None:
    path = folder / "matrices.yaml"
    path.write_text(text)
    op = fwgen.compile(path)
    got, want = results(op, "cpu", K), results(op, "reference", K)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-7, atol=1e-9, msg=f"{name}\n{text}")


@pytest.mark.parametrize("name", KNOWN)
def test_matrices_that_read(name: str, tmp_path: Path) -> None:
    update = "\n".join(f"  {line}" for line in [*options(KNOWN[name]), "h = 0.5 * h + A @ k"])
    update = update.replace("'", '"')
    for output in ("B @ q", "B @ q + prev(B) @ q + A.T @ h"):
        check(RULE.format(states="A: [K, K], B: [K, K]", update=update, output=output), tmp_path, 3)


@pytest.mark.parametrize("seed", range(8))
def test_drawn_matrices(seed: int, tmp_path: Path) -> None:
    check(drawn(seed), tmp_path, 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_drawn_matrices(seed: int, tmp_path: Path) -> None:
    check(drawn(seed), tmp_path, 1 + seed % 5)
