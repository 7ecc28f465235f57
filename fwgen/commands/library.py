"""`fwgen list` and `fwgen new`: the shipped rules, and a file to start from."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from fwgen.commands.common import UsageError, command, open_rule, print_table
from fwgen.language import list_feature_maps, list_rules, load_rule

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


def add(subparsers: Any) -> None:
    """Add both commands."""
    parser = command(
        subparsers,
        "list",
        run_list,
        "show the shipped rules and feature maps",
        "Every name can stand where a command takes a RULE.\n\n"
        "example:\n  fwgen list --table\n  fwgen explain gated_delta",
    )
    parser.add_argument(
        "--table", action="store_true", help="one row per rule: inputs, states and what it is"
    )
    parser = command(
        subparsers,
        "new",
        run_new,
        "start a rule file ./NAME.yaml",
        "Writes a small delta rule, or a copy of another rule under the new name. An existing\n"
        "file is never overwritten.\n\n"
        "example:\n  fwgen new my_rule --from gated_delta\n  fwgen explain my_rule.yaml",
    )
    parser.add_argument("name", metavar="NAME", help="name of the rule: a-z, 0-9 and _, at most 64")
    parser.add_argument("--from", dest="source", metavar="RULE", help="the rule to copy")


def run_list(options: argparse.Namespace) -> int:
    """Print names, or a table with each rule's tensors and documentation."""
    if not options.table:
        print("rules:         " + " ".join(list_rules()))
        print("feature maps:  " + " ".join(list_feature_maps()))
        return 0
    rows = [("rule", "inputs", "states", "what it is")]
    for name in list_rules():
        rule = load_rule(name)
        doc = " ".join(rule.doc.split())
        rows.append((name, " ".join(rule.inputs), " ".join(rule.states), doc))
    print_table(rows)
    return 0


def run_new(options: argparse.Namespace) -> int:
    """Write ./NAME.yaml unless it exists."""
    name = options.name
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise UsageError(f"{name!r} is no rule name: a-z, 0-9 and _, at most 64, a letter first")
    text = SCAFFOLD.format(name=name)
    if options.source:
        text = _renamed(open_rule(options.source).to_yaml(), name)
    path = Path(f"{name}.yaml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print(f"fwgen: error: {path} exists already and was left as it is", file=sys.stderr)
        return 1
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    print(f"wrote {path}; next: fwgen explain {path}")
    return 0


def _renamed(text: str, name: str) -> str:
    return re.sub(r"^name:.*$", f"name: {name}", text, count=1, flags=re.MULTILINE)
