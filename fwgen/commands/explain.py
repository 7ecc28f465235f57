"""`fwgen explain`: what the compiler found out about a rule."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fwgen.commands.common import add_rule_arguments, command, open_rule, print_json

STAGES = ("language", "step", "backward", "normal", "chunk")
MANUAL = """\
Prints the token's equations, the derived backward, the transition class of every state, the legal
forms or the first term that forbids one, work and traffic, what is kept for the backward and what
is computed again, and notes on stability.

--stage shows one intermediate result instead: the rule as it was read (language), scalar formulas
over indexed arrays (step), their adjoint (backward), the classified transition (normal), the chunk
program (chunk).

example:
  fwgen explain gated_delta
  fwgen explain my_rule.yaml --stage backward
  fwgen explain deltanet --format json | jq .transitions
"""


def add(subparsers: Any) -> None:
    """Add the command."""
    parser = command(subparsers, "explain", run, "show what was derived from a rule", MANUAL)
    add_rule_arguments(parser)
    parser.add_argument(
        "--format",
        choices=("text", "markdown", "latex", "json"),
        default="text",
        help="how to print the report (default: text)",
    )
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--stage", choices=STAGES, help="print one intermediate result instead")


def run(options: argparse.Namespace) -> int:
    """Print the report or one stage."""
    from fwgen.commands import report
    from fwgen.driver import compile_rule

    rule = open_rule(options.rule, dict(options.set), dict(options.map))
    if options.stage == "language":
        print(rule.to_yaml(), end="")
        return 0
    compilation = compile_rule(rule, targets=())
    if options.stage:
        print(_stage(options.stage, compilation), end="")
        return 0
    if options.json or options.format == "json":
        print_json(report.report_json(compilation))
        return 0
    writers = {
        "text": report.report_text,
        "markdown": report.report_markdown,
        "latex": report.report_latex,
    }
    sys.stdout.write(writers[options.format](compilation))
    return 0


def _stage(stage: str, compilation: Any) -> str:
    from fwgen.commands.report import chunk_text, class_text
    from fwgen.ir.text import dump

    if stage == "step":
        return dump(compilation.step)
    if stage == "backward":
        return dump(compilation.backward)
    if stage == "chunk":
        return f"chunk form of {compilation.rule.name}: {chunk_text(compilation)}\n"
    classes = (
        f"  {t.state}: {class_text(t)}, component {t.component}"
        for t in compilation.normal.transitions
    )
    return "\n".join(["transitions", *classes, "", dump(compilation.normal.step)])
