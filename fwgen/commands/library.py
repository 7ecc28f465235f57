"""`fwgen list` and `fwgen new`: the shipped rules, and a file to start from."""

from __future__ import annotations

import argparse
import keyword
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fwgen.commands.common import UsageError, command, complain, open_rule, print_table
from fwgen.language import Rule, list_feature_maps, list_rules, load_rule
from fwgen.language.names import RULE_NAME

SCAFFOLD = """\
name: {name}
doc: Delta rule; change a line, then run `fwgen explain {name}.yaml`.
inputs:            # one of each per token and head; dims are names, numbers or `scalar`
  q: K
  k: K
  v: V
  beta: scalar     # a rate in [0, 1]
state:             # carried from token to token, starts at 0
  W: [V, K]
feature_map:       # a named function; `--map phi=EXPR` replaces its body
  phi(x): l2norm(x)
update: |          # lines run in order; a name means its latest value
  kf = phi(k)
  W = W + beta * outer(v - W @ kf, kf)
output: W @ phi(q)
"""


LIST_MANUAL = """\
The name of a rule can stand where a command takes a RULE. The name of a feature map is a function
in every formula, and a whole map where a rule or --map takes one.

example:
  fwgen list --table
  fwgen explain gated_delta
  fwgen explain delta --map phi='dpfp(nu=2)'
"""
NEW_MANUAL = """\
Writes a small delta rule with comments, or with --from a copy of another rule under the new name. A
file that exists is never overwritten: the exit code is then 1.

example:
  fwgen new my_rule
  fwgen new other_rule --from gated_delta
  fwgen explain my_rule.yaml
"""


def add(subparsers: Any) -> None:
    """Add both commands."""
    summary = "show the shipped rules and feature maps"
    parser = command(subparsers, "list", run_list, summary, LIST_MANUAL)
    parser.add_argument(
        "--table", action="store_true", help="one row per rule: states, inputs and what it is"
    )
    parser = command(subparsers, "new", run_new, "start a rule file ./NAME.yaml", NEW_MANUAL)
    parser.add_argument("name", metavar="NAME", help="name of the rule: a-z, 0-9 and _, at most 64")
    parser.add_argument("--from", dest="source", metavar="RULE", help="the rule to copy")


def run_list(options: argparse.Namespace) -> int:
    """Print names, or a table with each rule's tensors and documentation."""
    if not options.table:
        for title, names in (("rules", list_rules()), ("feature maps", list_feature_maps())):
            print(f"{title}:")
            print(textwrap.fill(" ".join(names), 96, initial_indent="  ", subsequent_indent="  "))
        return 0
    rows = [("rule", "states", "inputs", "what it is")]
    for name in list_rules():
        rule = load_rule(name)
        rows.append((name, _few(rule.states), _few(rule.inputs), rule.summary))
    print_table(rows)
    return 0


def _few(names: Iterable[str]) -> str:
    """Names side by side; of many, the first few and how many there are."""
    found = list(names)
    text = " ".join(found)
    return text if len(text) <= 24 else f"{' '.join(found[:4])} ... ({len(found)})"


def run_new(options: argparse.Namespace) -> int:
    """Write ./NAME.yaml unless it exists."""
    name = options.name
    if not RULE_NAME.fullmatch(name) or keyword.iskeyword(name):
        stem = name.removesuffix(".yaml")
        near = stem != name and RULE_NAME.fullmatch(stem)
        hint = f"\n  hint: did you mean `{stem}`?" if near else ""
        raise UsageError(
            f"{name!r} cannot name a rule and its package: a-z, 0-9 and _, at most 64, a letter "
            f"first, and no word of Python{hint}"
        )
    text = SCAFFOLD.format(name=name)
    if options.source:
        text = _renamed(open_rule(options.source), name)
    path = Path(f"{name}.yaml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        complain(f"fwgen: error: {path} exists already and was left as it is")
        return 1
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    print(f"wrote {path}; next: fwgen explain {path}")
    return 0


def _renamed(rule: Rule, name: str) -> str:
    """The rule's file, comments included, under another name."""
    heads = [n for n, line in enumerate(rule.lines) if _NAME.fullmatch(line)]
    if len(heads) != 1:  # the name is quoted or within braces: write the rule anew
        return re.sub(r"^name:.*$", f"name: {name}", rule.to_yaml(), count=1, flags=re.MULTILINE)
    lines = list(rule.lines)
    lines[heads[0]] = f"name: {name}"
    return "\n".join(lines) + "\n"


_NAME = re.compile(r"name:\s+[a-z0-9_]+\s*(#.*)?")
