"""Lines that a document names are lines of the rule as it prints it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fwgen.cli import main
from fwgen.commands.report import report_markdown
from fwgen.commands.report.facts import as_printed
from fwgen.driver import compile_rule
from fwgen.language import list_rules, load_rule

COMMENTED = """\
# What this is for.

# And why.
name: small

inputs:
  k: K
  g: scalar   # a gate

state: {m: K, W: [K, K]}
update: |
  m = maximum(m + g, k)

  # The state.
  W = tanh(W) + outer(m, k)
output: W @ m
"""


def test_lines_of_a_rule_with_comments(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(COMMENTED, encoding="utf-8")
    text = report_markdown(compile_rule(load_rule(path), targets=()), "fwgen compile small")
    lines = text.split("```yaml\n")[1].split("\n```")[0].split("\n")
    named = {match: lines[int(match) - 1].strip() for match in re.findall(r"\(line (\d+)\)", text)}
    assert set(named.values()) == {"m = maximum(m + g, k)", "W = tanh(W) + outer(m, k)"}


@pytest.mark.parametrize("name", list_rules())
def test_lines_of_shipped_rules(name: str) -> None:
    """The line that it was in the file, and no line lost."""
    made = compile_rule(load_rule(name), targets=())
    printed, lines = as_printed(made), made.rule.text.split("\n")
    pairs = zip(made.normal.transitions, printed.normal.transitions, strict=True)
    for old, new in pairs:
        assert bool(old.line) == bool(new.line)
        if old.line:
            was = made.rule.lines[old.line - 1].split("#")[0].strip()
            assert was.split(": ")[-1] in lines[new.line - 1]


def test_a_package_does_not_depend_on_comments(tmp_path: Path, capsys: Any) -> None:
    path, out = tmp_path / "small.yaml", str(tmp_path / "generated")
    path.write_text(COMMENTED, encoding="utf-8")
    compiled = ["compile", "--target", "cpu", "--out", out]
    assert main([*compiled, str(path)]) == 0
    path.write_text(COMMENTED.replace("# What this is for.\n", ""), encoding="utf-8")
    assert main([*compiled, "--check", str(path)]) == 0
    own = tmp_path / "generated" / "small" / "rule.yaml"
    assert main([*compiled, "--check", str(own)]) == 0
    capsys.readouterr()
