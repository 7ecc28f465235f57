"""Rules that nobody would write, through every stage: kernels or a clear refusal, in seconds."""

import time
from pathlib import Path

import pytest
from mutations import Spoiler

from fwgen import RuleError, UnsupportedError, load_rule
from fwgen.driver import compile_rule

SECONDS = 10.0  # of the processor
SAMPLE, MANY = 12, 400
RULE = """\
name: chain
inputs: {q: K, k: K, v: V, g: scalar}
state: {W: [V, K]}
update: |
  W = W + outer(v, k)
UPDATEoutput: |
  y = q
OUTPUT  W @ y
"""
# A line that is repeated, in `update` or `output`; what it reads twice doubles at every step.
LINES = {
    "branches": ("output", "y = where(y > 0, y * 2, y * 3)", 60),
    "branches with logarithms": ("output", "y = where(y > 0, log(1 + y * y), sqrt(y * y + 1))", 40),
    "turned": ("output", "y = roll(y, 1) + y", 60),
    "turned and cut": ("output", "y = concat(y[1:], y[0]) * y", 40),
    "squared": ("output", "y = y * y + y", 60),
    "normalised": ("output", "y = layernorm(y) + y", 20),
    "largest": ("output", "y = y * max(y)", 60),
    "matrices": ("output", "y = W.T @ (W @ y) + y", 20),
    "clamped": ("output", "y = maximum(clamp(y, -1, 1), minimum(y, -y))", 40),
    "decays": ("update", "W = sigmoid(g * g) * W", 40),
    "signs": ("update", "W = where(g > 0, g, -1) * W", 40),
    "rows": ("update", "W = row(sigmoid(k * g)) * W", 20),
    "rows and columns": ("update", "W = row(sigmoid(k)) * W * col(sigmoid(v))", 20),
    "corrections": ("update", "W = W + g * outer(v - W @ k, k)", 20),
    "elements": ("update", "W = tanh(W) + W", 30),
}


def judge(path: Path) -> bool:
    """Compile a file; whether it was a rule."""
    try:
        rule = load_rule(path)
    except RuleError:
        return False
    start = time.process_time()
    try:
        compile_rule(rule)
    except (RuleError, UnsupportedError) as error:
        assert str(error)
    assert time.process_time() - start < SECONDS
    return True


@pytest.mark.parametrize("name", LINES)
def test_line_many_times(name, tmp_path):
    section, line, times = LINES[name]
    text = RULE
    for part in ("update", "output"):
        text = text.replace(part.upper(), f"  {line}\n" * times if part == section else "")
    path = tmp_path / "chain.yaml"
    path.write_text(text)
    assert judge(path)


@pytest.mark.parametrize(
    "expression",
    [
        " < ".join(["g"] * 100),
        " and ".join(["g > 0"] * 100),
        "not (" * 40 + "g > 0" + ")" * 40,
    ],
    ids=["compared", "joined", "negated"],
)
def test_long_condition(expression, tmp_path):
    path = tmp_path / "condition.yaml"
    path.write_text(
        RULE.replace("UPDATE", "").replace("OUTPUT", f"  y = where({expression}, y, 0)\n")
    )
    assert judge(path)


def test_long_product(tmp_path):
    path = tmp_path / "product.yaml"
    product = " * ".join(["(g + 1)"] * 120)
    path.write_text(RULE.replace("UPDATE", "").replace("OUTPUT", f"  y = {product} * y\n"))
    assert judge(path)


def mixed(start: int, count: int, path: Path) -> None:
    """Compile so many of the texts from a number on that are rules; the number tells which."""
    spoiler, number, faulty = Spoiler(2), start, []
    while count:
        path.write_bytes(spoiler.text(number).encode("utf-8", "surrogatepass"))
        try:
            count -= judge(path)
        except Exception as error:
            faulty.append((number, f"{type(error).__name__}: {error}"[:300]))
            count -= 1
        number += 1
    assert not faulty, f"texts and what came of them: {faulty}"


def test_mixed_rules(tmp_path):
    mixed(0, SAMPLE, tmp_path / "mixed.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_mixed_rules(part, tmp_path):
    mixed(100_000 * part, MANY // 4, tmp_path / "mixed.yaml")
