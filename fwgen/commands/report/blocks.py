"""What a report is made of, before it becomes text, Markdown or LaTeX."""

from __future__ import annotations

from dataclasses import dataclass, field

from fwgen.commands.report.equations import Equation


@dataclass(frozen=True, slots=True)
class Math:
    """A formula within a line or on its own: as plain text and as LaTeX."""

    text: str
    latex: str


@dataclass(frozen=True, slots=True)
class Code:
    """A word of the generated files."""

    text: str


Line = tuple[str | Math | Code, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A line that leads to what comes next."""

    line: Line


@dataclass(frozen=True, slots=True)
class Items:
    """Lines of a list."""

    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Equations:
    """Equations in index notation, one below the other; `symbols` are LaTeX names of arrays."""

    equations: tuple[Equation, ...]
    symbols: dict[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Formulas:
    """Formulas on lines of their own."""

    formulas: tuple[Math, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of equal length, the first one the heading; all columns but the first are numbers."""

    rows: tuple[tuple[str | Math, ...], ...]


Block = Paragraph | Items | Equations | Formulas | Table


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of the report."""

    title: str
    blocks: tuple[Block, ...]


def plain(line: Line) -> str:
    """A line as text."""
    found = "".join(part if isinstance(part, str) else part.text for part in line)
    return " ".join(found.split())
