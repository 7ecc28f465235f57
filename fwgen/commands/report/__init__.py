"""What `fwgen explain` and a package's REPORT.md say about a rule."""

from __future__ import annotations

from typing import Any

from fwgen.commands.report import render
from fwgen.commands.report.document import document
from fwgen.commands.report.facts import as_printed, chunk_text, class_text
from fwgen.commands.report.sections import sections
from fwgen.driver import Compilation

__all__ = [
    "chunk_text",
    "class_text",
    "report_json",
    "report_latex",
    "report_markdown",
    "report_text",
]


def report_text(compilation: Compilation) -> str:
    """Plain text."""
    return render.text(compilation.rule, sections(compilation))


def report_markdown(compilation: Compilation, command: str) -> str:
    """Markdown; with the command that made the package, its REPORT.md.

    Lines are those of the rule as it is printed there.
    """
    return render.markdown(compilation.rule, sections(as_printed(compilation)), command)


def report_latex(compilation: Compilation) -> str:
    """A LaTeX fragment (needs amsmath)."""
    return render.latex(compilation.rule, sections(compilation))


def report_json(compilation: Compilation) -> dict[str, Any]:
    """The document of `fwgen explain --format json`."""
    return document(compilation)
