"""The line that a report names is the one that holds the offending term, wherever it stands."""

from __future__ import annotations

import itertools

import pytest

from fwgen.algebra.normal import normalise
from fwgen.language import load_rule, lower

HEAD = """\
name: placed
inputs: {q: K, k: K, v: V, h: V, a: K, g: K, b: scalar}
params: {P: [V, V], R: [V, K]}
state: {W: [V, K]}
update: |
"""
TERMS = {
    "where on an element of a read": ("r = W @ k", "W = where(r[0] > b, 1, 0.5) * W #!"),
    "where on a number": ("r = dot(W @ k, h)", "W = where(r > b, 1, 0.5) * W #!"),
    "where on an old read": ("r = dot(prev(W) @ k, h)", "W = where(r > b, 1, 0.5) * W #!"),
    "where of its own line": ("c = where(dot(W @ k, h) > b, 1, 0.5) #!", "W = c * W"),
    "where of the state": ("W = where(b > 0, W, 0 * W) #!",),
    "gate by a read": ("r = W @ k", "W = col(sigmoid(r)) * W #!"),
    "gate of its own line": ("r = sigmoid(W @ k) #!", "W = col(r) * W"),
    "function of the state": ("W = tanh(W) #!",),
    "norm": ("W = W / maximum(norm(W), 1) #!",),
    "matrix on a read": ("u = P @ (W @ k) #!", "W = W + outer(v - u, k)"),
    "matrix on the state": ("W = P @ W #!",),
    "vector on a read": ("u = h * (W @ k) #!", "W = W + outer(v - u, k)"),
    "stopped read": ("u = stop_gradient(W @ k) #!", "W = W + outer(v - u, k)"),
    "read of both axes": ("u = dot(W @ k, h) #!", "W = W - u * outer(h, k)"),
    "matrix of factors": ("W = outer(h, k) * W #!",),
    "matrix as a factor": ("W = R * W #!",),
    "matrix as a term": ("W = W + R #!",),
    "element of the state": ("W = W + W[0, 0] * outer(v, k) #!",),
    "second axis of erasing": ("W = W - outer(W @ k, k)", "W = W - outer(h, h @ W) #!"),
    "second axis of the decay": ("W = row(a) * W", "W = col(h) * W #!"),
}
BEFORE = ("", "W = 0.5 * W", "W = row(exp(g)) * W", "W = W + b * outer(v, a)")
AFTER = ("", "W = W + outer(v, g)", "W = b * W")
OUTPUT = ("W @ q", "|\n  x = W @ q\n  where(sum(x) > b, 1, 0.5) * x")


@pytest.mark.parametrize("term", TERMS)
def test_the_line_of_a_term(term, tmp_path):
    contexts = [*itertools.product(BEFORE, AFTER, OUTPUT)][:: 1 if len(TERMS[term]) == 1 else 3]
    for before, after, output in contexts:
        lines = [line for line in (before, *TERMS[term], after) if line]
        text = HEAD + "".join(f"  {line}\n" for line in lines) + f"output: {output}\n"
        path = tmp_path / "placed.yaml"
        path.write_text(text, encoding="utf-8")
        normal = normalise(lower(load_rule(path)))
        (found,) = normal.transitions
        wanted = 1 + next(n for n, line in enumerate(text.split("\n")) if "#!" in line)
        assert found.reason, text
        assert (found.line, normal.chunk_line) == (wanted, wanted), f"{found.reason}\n{text}"


def test_the_reason_is_written_in_the_functions_of_the_rule(tmp_path):
    """A gate is a sigmoid there, although its logarithm is what the normal form works with."""
    path = tmp_path / "placed.yaml"
    path.write_text(f"{HEAD}  W = sigmoid(dot(W @ k, h)) * W\noutput: W @ q\n", encoding="utf-8")
    (found,) = normalise(lower(load_rule(path))).transitions
    assert found.reason and found.reason.startswith("sigmoid is applied")


def test_many_lines_before_the_term(tmp_path):
    lines = [f"  W = W + {n} * outer(v, k)\n" for n in range(1, 40)]
    text = HEAD + "".join([*lines, "  W = W + R\n", *lines]) + "output: W @ q\n"
    path = tmp_path / "placed.yaml"
    path.write_text(text, encoding="utf-8")
    (found,) = normalise(lower(load_rule(path))).transitions
    assert found.line == text.split("\n").index("  W = W + R") + 1
