"""Feature maps that nothing calls have their faults reported, as far as no argument is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fwgen.errors import RuleError
from fwgen.ir.text import dump
from fwgen.language import load_rule, lower

RULE = """\
name: small
inputs: {q: K, k: K, v: V}
params: {d: K}
state: {W: [V, K]}
feature_map:
  %s
update: W = W + outer(v, k)
output: W @ q
"""


def written(maps: str, folder: Path) -> Path:
    path = folder / "small.yaml"
    path.write_text(RULE % maps, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("maps", "wanted"),
    [
        ("phi: nosuch", ["6:8: error: `nosuch` is not defined"]),
        ("phi: dpfp(nuu=2)", ["6:13: error: `nuu` is no parameter of `dpfp`"]),
        ("phi(x): y + x", ["6:11: error: `y` is not defined"]),
        ("phi(x): sofmax(x) + relu(x, 2)", ["no function `sofmax`", "`relu` takes 1 argument"]),
        ("phi(x): x\n  psi(x): phi(x, 2)", ["7:11: error: `phi` takes 1 argument, not 2"]),
    ],
)
def test_faults(maps: str, wanted: list[str], tmp_path: Path) -> None:
    with pytest.raises(RuleError) as caught:
        load_rule(written(maps, tmp_path))
    for text in wanted:
        assert text in str(caught.value)
    assert str(caught.value).count("error:") == len(wanted)


@pytest.mark.parametrize(
    "maps",
    [
        "phi(x): concat(1, x, square(x))",
        "phi(x): x * exp(d)",
        "phi(a, b): outer(a, b)",
        "phi(x): |\n    y = exp(d)\n    y[0] * roll(x, 1) + norm(y)",
        "phi(x): psi(x)\n  psi(x): elu(x) + 1",
    ],
)
def test_what_is_right_changes_nothing(maps: str, tmp_path: Path) -> None:
    plain = lower(load_rule(written("none(x): x", tmp_path)))
    assert dump(lower(load_rule(written(maps, tmp_path)))) == dump(plain)
