"""`fwgen explain`: what the compiler found out about a rule."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from fwgen.commands.common import (
    UsageError,
    add_rule_arguments,
    command,
    open_rule,
    print_json,
)
from fwgen.emit.heading import compile_command

if TYPE_CHECKING:
    from fwgen.driver import Compilation
    from fwgen.language import Rule

STAGES = ("language", "step", "backward", "normal", "chunk")
MANUAL = """\
Prints the equations of one token, how it moves every state and what class that is, the legal forms
or the first term that forbids one, the derived gradients, work and traffic, what is kept for the
backward and what is computed again, and what keeps the states from growing.

--format text is for the terminal; markdown has its formulas in LaTeX, as a package's REPORT.md;
latex is a fragment to \\input into a document that loads amsmath; json is for programs.

--stage prints one intermediate result instead:
  language   the rule as it was read, constants and maps put in
  step       scalar formulas over indexed arrays
  backward   their adjoint
  normal     the class of every state, and the formulas in normal form
  chunk      the parallel form over chunks of tokens, or why there is none

example:
  fwgen explain gated_delta
  fwgen explain my_rule.yaml --map phi='elu(x) + 1' --stage backward
  fwgen explain deltanet --format markdown > deltanet.md
  fwgen explain deltanet --json | python -c 'import json, sys; print(json.load(sys.stdin)["forms"])'
"""


def add(subparsers: Any) -> None:
    """Add the command."""
    parser = command(subparsers, "explain", run, "show what was derived from a rule", MANUAL)
    add_rule_arguments(parser)
    parser.add_argument(
        "--format",
        choices=("text", "markdown", "latex", "json"),
        help="how to print the report or the stage (default: text)",
    )
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument(
        "--stage", choices=STAGES, metavar="STAGE", help=f"one of {', '.join(STAGES)}"
    )


def run(options: argparse.Namespace) -> int:
    """Print the report or one stage."""
    form = options.format or ("json" if options.json else "text")
    if options.json and form != "json":
        raise UsageError(f"--json and --format {form} exclude each other")
    rule = open_rule(options.rule, dict(options.set), dict(options.map))
    if options.stage:
        _print_stage(options.stage, rule, form)
    else:
        _print_report(rule, form, compile_command(rule.name, dict(options.set), dict(options.map)))
    return 0


def _print_report(rule: Rule, form: str, made_by: str) -> None:
    from fwgen.commands import report
    from fwgen.driver import compile_rule

    compilation = compile_rule(rule, targets=())
    match form:
        case "json":
            print_json(report.report_json(compilation))
        case "markdown":
            sys.stdout.write(report.report_markdown(compilation, made_by))
        case "latex":
            sys.stdout.write(report.report_latex(compilation))
        case _:
            sys.stdout.write(report.report_text(compilation))


def _print_stage(stage: str, rule: Rule, form: str) -> None:
    """A stage's text, which the other formats set as it is."""
    text = _stage(stage, rule)
    match form:
        case "json":
            print_json({"name": rule.name, "hash": rule.hash, "stage": stage, "text": text})
        case "markdown":
            sys.stdout.write(f"```{'yaml' if stage == 'language' else 'text'}\n{text}```\n")
        case "latex":
            sys.stdout.write(f"\\begin{{verbatim}}\n{text}\\end{{verbatim}}\n")
        case _:
            sys.stdout.write(text)


def _stage(stage: str, rule: Rule) -> str:
    """The text of one stage."""
    from fwgen.driver import compile_rule
    from fwgen.ir.text import dump

    if stage == "language":
        return rule.to_yaml()
    compilation = compile_rule(rule, targets=())
    match stage:
        case "step":
            return dump(compilation.step)
        case "backward":
            return _backward(compilation)
        case "normal":
            return _normal(compilation)
        case _:
            return _chunk(compilation)


def _backward(compilation: Compilation) -> str:
    """The adjoint, below what it uses of the forward that the stage `step` does not name."""
    from fwgen.commands.report.facts import values_of_backward
    from fwgen.ir.text import dump, statement_text

    values = [f"  {statement_text(s)}" for s in values_of_backward(compilation)]
    head = (
        ["values of the forward, beside those of the stage `step`", *values, ""] if values else []
    )
    return "\n".join([*head, dump(compilation.backward)])


def _normal(compilation: Compilation) -> str:
    from fwgen.commands.report import class_text
    from fwgen.ir.text import dump

    classes = (
        f"  {t.state}: {class_text(t)}, component {t.component}"
        for t in compilation.normal.transitions
    )
    heading = "transitions; states of one component feed each other, component 0 comes first"
    return "\n".join([heading, *classes, "", dump(compilation.normal.step)])


def _chunk(compilation: Compilation) -> str:
    from fwgen.commands.report import chunk_text

    return f"chunk form of {compilation.rule.name}\n  {chunk_text(compilation)}\n"
