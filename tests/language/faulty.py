"""A sound rule to spoil, and reading what the messages say."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from fwgen import RuleError, load_rule

SOUND = """\
name: sound
doc: A delta rule with a decay, a bonus and a feature map of its own.
constants: {nu: 2, eps: 1e-3}
inputs:
  q: K
  k: K
  v: V
  beta: scalar
  g: K
params:
  u: V
buffers:
  omega: [M, K]
state:
  W: [V, F]
  z: {dims: [F], init: 0.5}
feature_map:
  phi(x): |
    r = exp(omega @ x)
    concat(r ** i for i in range(1, nu + 1)) / (sum(r) + eps)
update: |
  kf = phi(k * exp(g))
  W = W + beta * outer(v - W @ kf, kf)
  z = z + kf
output: |
  y = W @ phi(q)
  y / dot(z, phi(q)) + u * t
"""


@dataclass(frozen=True)
class Shown:
    """One reported fault: its place, and the text over its caret."""

    line: int
    column: int
    message: str
    marked: str
    hint: str


def faults(text: str, folder: Path, **changes: object) -> list[Shown]:
    """What is reported for a rule that must be refused."""
    path = folder / "spoilt.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RuleError) as error:
        load_rule(path, **changes)
    return shown(str(error.value))


def shown(text: str) -> list[Shown]:
    """Read messages back, as a person would: the caret marks a part of the line above it."""
    found = []
    for part in re.split(r"(?m)^(?=.+:\d+:\d+: error: )", text)[1:]:
        head, *rest = part.rstrip("\n").split("\n")
        place = re.match(r"(.+):(\d+):(\d+): error: (.+)", head)
        assert place, part
        marked = ""
        if len(rest) > 1 and "^" in rest[1]:
            start, end = rest[1].index("^"), rest[1].rindex("^") + 1
            assert set(rest[1][:start]) <= set(" |") and set(rest[1][start:end]) == {"^"}
            marked = rest[0][start:end]
        hints = [line.strip() for line in rest if line.strip().startswith("hint: ")]
        hint = hints[0] if hints else ""
        found.append(Shown(int(place[2]), int(place[3]), place[4], marked, hint))
    return found


def spoil(old: str, new: str) -> str:
    """The sound rule with one thing changed."""
    assert SOUND.count(old) >= 1, old
    return SOUND.replace(old, new, 1)
