"""The `fwgen` command: parses arguments, runs a subcommand, turns errors into exit codes."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import fwgen
from fwgen.commands import bench, check, compile, doctor, explain, library
from fwgen.commands.common import Parser, UsageError, complain
from fwgen.errors import ArgumentError, InternalError, RuleError, RuleNotFound, UnsupportedError

MODEL_COMMANDS = {
    "train": "train a model on a task, with any rule",
    "eval": "judge a trained model: perplexity, loss or accuracy",
    "generate": "write text with a trained language model",
    "translate": "translate lines with a trained translator",
    "plot": "draw the figures of a finished run",
}
MANUAL = """\
fwgen compiles one-step fast weight rules into fused kernels (Triton for GPUs, C++ for CPUs),
forward and backward, and proves them equal to autograd.

A rule is a short YAML file, or the name of one that is shipped. The usual way through:

  fwgen list                         what is shipped
  fwgen new my_rule --from delta     copy a shipped rule to my_rule.yaml and edit it
  fwgen explain my_rule.yaml         the derived backward, the class of the update, its costs
  fwgen check my_rule.yaml           property tests of every kernel against autograd
  fwgen compile my_rule.yaml         write the package generated/my_rule/
  fwgen bench my_rule.yaml           time it beside plain PyTorch
  fwgen doctor                       what this machine lacks, should any of that fail

`fwgen COMMAND --help` is the manual of a command, with examples. --set and --map change constants
and feature maps without an edit; --json makes stdout one JSON document.

Exit codes: 0 fine; 1 the rule is faulty or a check failed; 2 wrong usage, an unknown rule or an
unreadable file; 3 a fault of fwgen itself. Messages go to stderr, results to stdout.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may know few characters
            stream.reconfigure(errors="backslashreplace")
    try:
        top = parser(arguments)
        options, unknown = top.parse_known_args(arguments)
        if unknown:
            getattr(options, "parser", top).error(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as exit_:  # argparse has printed help or the fault
        return exit_.code if isinstance(exit_.code, int) else 2
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BaseException as error:
        return report_fault(error, arguments)
    return code


def report_fault(error: BaseException, arguments: Sequence[str] = ()) -> int:
    """Print what went wrong as its reader needs it; returns the exit code."""
    match error:
        case UsageError() | RuleNotFound():
            return _complain(str(error), 2)
        case RuleError():
            complain(str(error))
            return 1
        case ArgumentError() | UnsupportedError():
            return _complain(str(error), 1)
        case BrokenPipeError():  # the reader of our output has gone, as in `fwgen list | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case KeyboardInterrupt():
            return _complain("interrupted", 130)
        case Exception():
            return _internal(error, arguments or sys.argv[1:])
        case _:
            raise error


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The whole command line; the models' options are only loaded when one of them is named."""
    top = Parser(
        prog="fwgen", description=MANUAL, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"fwgen {fwgen.__version__}")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for module in (compile, explain, check, bench, library, doctor):
        module.add(subparsers)
    _add_models(subparsers, arguments)
    return top


def _add_models(subparsers: Any, arguments: Sequence[str]) -> None:
    """Mount `fwgen.models`, whose import brings in torch, only for its own commands."""
    named = next((a for a in arguments if not a.startswith("-")), None)
    if named in MODEL_COMMANDS:
        from fwgen.models.cli import add_commands

        add_commands(subparsers)
        return
    for name, summary in MODEL_COMMANDS.items():
        subparsers.add_parser(name, help=summary)


def _complain(message: str, code: int) -> int:
    complain(f"fwgen: error: {message}")
    return code


def _internal(error: Exception, arguments: Sequence[str]) -> int:
    """A fault of ours: what happened, and what a report needs."""
    if not isinstance(error, InternalError) or error.__cause__ is not None:
        traceback.print_exception(error)
    complain(
        f"fwgen: internal error: {error or type(error).__name__}\n"
        "This is a fault of fwgen, not of your rule. Please report it and attach the rule file,\n"
        f"the text above, and this: fwgen {fwgen.__version__}, Python {sys.version.split()[0]}, "
        f"arguments {shlex.join(arguments)}"
    )
    return 3
