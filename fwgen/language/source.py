"""Places in a rule's text, and the collection of faults found there."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from fwgen.errors import Diagnostic, RuleError, printable

MOST_REPORTED = 20
"""Faults that one run prints; the rest is counted."""
LONGEST_MESSAGE = 400


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A text under the name that messages show, by lines."""

    name: str
    lines: tuple[str, ...]

    @staticmethod
    def of(name: str, text: str) -> SourceFile:
        """Split a text at its line feeds."""
        return SourceFile(name, tuple(text.split("\n")))


@dataclass(frozen=True, slots=True)
class Span:
    """Part of one line: 1-based line and column, columns in characters."""

    file: SourceFile
    line: int = 1
    column: int = 1
    width: int = 1

    @property
    def source(self) -> str:
        """The whole line."""
        inside = 0 < self.line <= len(self.file.lines)
        return self.file.lines[self.line - 1] if inside else ""


@lru_cache(maxsize=64)
def _lines(text: str) -> tuple[str, ...]:
    """The lines of a text; a formula is asked for thousands of spans."""
    return tuple(text.split("\n"))


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar of a file. Every line of `value` knows its line and columns in the file: one
    column for a line that stands there as it is, else one column for each character."""

    file: SourceFile
    value: str
    places: tuple[tuple[int, int | tuple[int, ...]], ...]

    def span(self, line: int = 0, start: int = 0, end: int | None = None) -> Span:
        """The span of characters `start` to `end` of a line of `value`, counted from 0."""
        lines = _lines(self.value)
        line = min(line, len(lines) - 1)
        last = len(lines[line].rstrip())
        end = last if end is None else end
        number, columns = self.places[min(line, len(self.places) - 1)]
        if isinstance(columns, int):
            return Span(self.file, number, columns + start, max(1, end - start))
        if not columns:
            return Span(self.file, number, 1, 1)
        start, stop = min(start, len(columns) - 1), min(max(end, 1), len(columns)) - 1
        return Span(self.file, number, columns[start], max(1, columns[stop] - columns[start] + 1))

    @staticmethod
    def plain(file: SourceFile, value: str, line: int = 1, column: int = 1) -> Text:
        """A text whose lines stand in the file one after the other, at one column."""
        lines = value.split("\n")
        return Text(file, value, tuple((line + i, column) for i in range(len(lines))))


def _short(text: str) -> str:
    """A message that can be printed, without the middle of a long name or formula in it."""
    text = text.encode("utf-8", "replace").decode()  # an escape may have named half a character
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:200]} … {text[-180:]}"


@dataclass(slots=True)
class Report:
    """Faults and warnings of one rule. A place is reported once, by its first fault."""

    errors: dict[tuple[str, int, int], Diagnostic] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)

    @property
    def readable(self) -> bool:
        """Whether another fault would still be shown."""
        return len(self.errors) < MOST_REPORTED

    def error(self, span: Span, message: str, hint: str | None = None) -> None:
        """Note a fault."""
        place = (span.file.name, span.line, span.column)
        hint = None if hint is None else _short(hint)
        fault = Diagnostic(*place, _short(message), span.source, span.width, hint)
        self.errors.setdefault(place, fault)

    def has(self, span: Span) -> bool:
        """Whether the line of a span has a fault already."""
        return any(place[:2] == (span.file.name, span.line) for place in self.errors)

    def warn(self, span: Span, message: str) -> None:
        """Note something that is legal and probably not meant."""
        place = f"{span.file.name}:{span.line}:{span.column}"
        self.warnings.setdefault(printable(f"{place}: warning: {message}"))

    def check(self) -> None:
        """Raise a RuleError with every fault so far, in the order of the file."""
        if not self.errors:
            return
        faults = sorted(self.errors.values(), key=lambda d: (d.file, d.line, d.column))
        shown, left = faults[:MOST_REPORTED], len(faults) - MOST_REPORTED
        if left > 0:
            last = shown[-1]
            more = f"{left} more faults, not shown"
            shown.append(Diagnostic(last.file, last.line, last.column, more))
        raise RuleError(shown)


def fail(span: Span, message: str, hint: str | None = None) -> RuleError:
    """A RuleError of one fault, for faults that leave nothing to go on with."""
    report = Report()
    report.error(span, message, hint)
    return RuleError(list(report.errors.values()))


def left_open(line: str) -> int | None:
    """Where the innermost bracket stands that a line opens and does not close."""
    opened: list[int] = []
    for place, letter in enumerate(line.partition("#")[0]):
        if letter in "([{":
            opened.append(place)
        elif letter in ")]}" and opened:
            opened.pop()
    return opened[-1] if opened else None
