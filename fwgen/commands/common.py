"""What the subcommands share: finding a rule, its options, and printing results."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from fwgen.errors import printable
from fwgen.language import Rule, load_rule
from fwgen.language.names import did_you_mean

Handler = Callable[[argparse.Namespace], int]


class UsageError(Exception):
    """Wrong usage that argparse cannot see, such as a folder that cannot be written."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose faults name the manual, and the nearest word that is known."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line and exit with 2."""
        hint = self._nearest(message) or f"`{self.prog} --help` explains it"
        message = printable(message)
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\n  hint: {hint}\n")

    def _nearest(self, message: str) -> str | None:
        unknown = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown is not None:
            known = [option for option in self._option_string_actions if option.startswith("--")]
            return did_you_mean(unknown[1], known)
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        return wrong and did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]))


def command(
    subparsers: Any, name: str, run: Handler, summary: str, manual: str
) -> argparse.ArgumentParser:
    """Add a subcommand whose `--help` is `summary` and `manual` as written."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.\n\n{manual.strip()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_rule_arguments(parser: argparse.ArgumentParser, *, many: bool = False) -> None:
    """RULE and the options that change its constants and feature maps."""
    parser.add_argument(
        "rules" if many else "rule",
        metavar="RULE",
        nargs="+" if many else None,
        help="path of a rule file, or the name of a shipped rule (see `fwgen list`)",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=NUMBER",
        action=_ByName,
        default=[],
        type=_assignment,
        help="override a constant of the rule; once for each",
    )
    parser.add_argument(
        "--map",
        metavar="NAME=EXPR",
        action=_ByName,
        default=[],
        type=_map,
        help="replace the body of a feature map, e.g. phi='elu(x) + 1'; once for each",
    )


class _ByName(argparse.Action):
    """Collects pairs of a name and a value; a name given twice is a mistake."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        found = getattr(namespace, self.dest)
        if values[0] in dict(found):
            raise argparse.ArgumentError(self, f"`{values[0]}` is given twice")
        setattr(namespace, self.dest, [*found, values])


def _assignment(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not equals or not name.strip() or number != number:
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER, got {text!r}")
    return name.strip(), int(value) if value.strip().lstrip("+-").isdigit() else number


def _map(text: str) -> tuple[str, str]:
    name, equals, body = text.partition("=")
    if not equals or not name.strip() or not body.strip():
        raise argparse.ArgumentTypeError(f"expected NAME=EXPR, got {text!r}")
    return name.strip(), body.strip()


def choices(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    """An argparse type: a comma-separated list of these words, each once, in the order given."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
        for word in words:
            if word not in allowed:
                known = ", ".join(allowed)
                raise argparse.ArgumentTypeError(f"{word!r} is none of {known}")
        return words

    return parse


def count(text: str) -> int:
    """An argparse type: a positive integer."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return value


def open_rule(
    source: str, constants: Mapping[str, float] | None = None, maps: Mapping[str, str] | None = None
) -> Rule:
    """Load a rule by path or name and print its warnings; raises RuleError, or RuleNotFound."""
    rule = load_rule(source, set=constants, maps=maps)
    for warning in rule.warnings:
        complain(warning)
    return rule


def as_options(message: str) -> str:
    """A message of the Python API in words of the command line: `--form recurrent`."""
    return re.sub(r'\b(form|backend)="(\w+)"', r"--\1 \2", message)


def complain(text: str) -> None:
    """A message on stderr, where nothing that came from outside can steer the terminal."""
    print(printable(text), file=sys.stderr, flush=True)


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Rows of equal length in aligned columns; the first is the heading."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
