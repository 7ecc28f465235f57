"""`fwgen check`: the proof that the kernels of a rule compute what autograd computes."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from fwgen.commands.common import (
    add_rule_arguments,
    as_options,
    choices,
    command,
    complain,
    count,
    open_rule,
    print_json,
    print_table,
)
from fwgen.commands.guard import guarded
from fwgen.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fwgen.language import Rule
    from fwgen.verify import Case, Outcome

BACKENDS = ("reference", "cpu", "triton")
MANUAL = """\
Draws calls (sizes, lengths, head groups, initial states, packed sequences, memory layouts, losses
on the output, on the final state or on both), runs every backend and form on them, and compares
output, final states and all gradients with autograd of the token loop in float64. What is allowed
follows from how far plain PyTorch is from that golden in the same precision.

Prints the worst error of every tensor, its largest difference, beside what was allowed. A failing
call is shrunk and printed as a snippet that shows it again; the exit code is then 1, as it is when
a form or a backend that was asked for cannot run.

Without --backend the Triton kernels are included where they can run: with a GPU, or under
TRITON_INTERPRET=1. The reference is checked too, since all else is held to it.

example:
  fwgen check deltanet
  fwgen check my_rule.yaml --backend cpu --form recurrent --cases 200 --seed 3
  TRITON_INTERPRET=1 fwgen check my_rule.yaml --backend triton --cases 5
"""


def add(subparsers: Any) -> None:
    """Add the command."""
    parser = command(
        subparsers, "check", run, "test the kernels of a rule against autograd", MANUAL
    )
    add_rule_arguments(parser)
    parser.add_argument(
        "--backend",
        metavar="LIST",
        type=choices(*BACKENDS),
        help="backends, separated by commas: reference, cpu, triton (default: all that can run)",
    )
    parser.add_argument(
        "--form",
        metavar="LIST",
        type=choices("recurrent", "chunk"),
        help="forms, separated by commas: recurrent, chunk (default: all legal ones)",
    )
    parser.add_argument(
        "--cases",
        metavar="N",
        type=count,
        default=20,
        help="calls drawn per backend and form (default: 20)",
    )
    parser.add_argument(
        "--seed", metavar="S", type=int, default=0, help="seed of the draws (default: 0)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Check every asked backend and form, in a child process since kernels could crash."""
    rule = open_rule(options.rule, dict(options.set), dict(options.map))

    def crashed(name: str, snippet: str) -> int:
        complain(f"fwgen: a kernel crashed the process ({name})")
        _report([], [], f"# crashes with {name}\n{snippet}", options)
        return 1

    return guarded(lambda note: _check(rule, options, note), crashed)


def _check(rule: Rule, options: argparse.Namespace, note: Callable[[str], None]) -> int:
    """The exit code; `note` gets a snippet of every call before it runs."""
    import fwgen
    from fwgen.commands.draws import draws
    from fwgen.language import lower
    from fwgen.verify import check_form

    op, drawn = fwgen.compile(rule), draws(lower(rule))
    outcomes, refused = [], []
    for backend, form in _asked(options, op.forms):

        def before(case: Case, backend: str = backend, form: str = form) -> None:
            note(_snippet(case, backend, form, options))

        try:
            outcome = check_form(
                op, drawn, backend, form, options.cases, options.seed, before=before
            )
            outcomes.append(outcome)
        except UnsupportedError as error:
            refused.append(f"{backend}, {form}: {as_options(str(error))}")
    failing = next((o for o in outcomes if o.message), None)
    fault = None
    if failing is not None:
        fault = f"# {failing.message}"
        if failing.failing is not None:
            fault += "\n" + _snippet(failing.failing, failing.backend, failing.form, options)
    _report(outcomes, refused, fault, options)
    return 1 if fault or refused else 0


def _asked(options: argparse.Namespace, forms: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The backends and forms to check; the reference has the recurrent form alone."""
    for backend in options.backend or _available():
        for form in options.form or forms:
            if backend != "reference" or form == "recurrent" or options.form is not None:
                yield backend, form


def _report(
    outcomes: list[Outcome], refused: list[str], fault: str | None, options: argparse.Namespace
) -> None:
    """Rows and the fault on stdout, what cannot be served on stderr."""
    for line in refused:
        complain(f"fwgen: not checked: {line}")
    calls = sum(o.cases for o in outcomes)
    if options.json:
        print_json(
            {
                "passed": fault is None and not refused,
                "cases": calls,
                "rows": [row for o in outcomes for row in _rows(o)],
                "failing": fault,
                "refused": refused,
            }
        )
        return
    _print(outcomes)
    if fault is not None:
        print(f"FAILED, one of {calls} calls against autograd in float64\n\n{fault}")
    elif refused:
        rest = f"; {calls} calls of the rest agree with autograd in float64" if calls else ""
        print(f"NOT CHECKED as asked{rest}")
    else:
        print(f"passed: {calls} calls against autograd in float64")


def _available() -> tuple[str, ...]:
    """The backends that can run here."""
    import torch

    triton = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
    return BACKENDS if triton else BACKENDS[:2]


def _rows(outcome: Outcome) -> list[dict[str, Any]]:
    return [
        {
            "backend": outcome.backend,
            "form": outcome.form,
            "tensor": row.tensor,
            "error": row.error if row.error < float("inf") else None,
            "allowed": row.allowed,
        }
        for row in outcome.rows.values()
    ]


def _print(outcomes: list[Outcome]) -> None:
    rows = [("backend", "form", "tensor", "error", "allowed", "")]
    for outcome in outcomes:
        for row in outcome.rows.values():
            numbers = (f"{row.error:.1e}", f"{row.allowed:.1e}")
            mark = "ok" if row.fine else "WRONG"
            rows.append((outcome.backend, outcome.form, row.tensor, *numbers, mark))
    if len(rows) > 1:
        print_table(rows, right=(3, 4))
        print()


def _snippet(case: Case, backend: str, form: str, options: argparse.Namespace) -> str:
    """Python that runs a case again and shows its errors."""
    extra = f", set={dict(options.set)!r}" if options.set else ""
    extra += f", maps={dict(options.map)!r}" if options.map else ""
    return "\n".join(
        [
            "import fwgen",
            "from fwgen.verify import Case, show",
            "",
            f"op = fwgen.compile({str(options.rule)!r}{extra})",
            f"case = {case!r}",
            f"show(op, case, backend={backend!r}, form={form!r})",
        ]
    )
