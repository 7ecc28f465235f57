"""The four errors a user can meet, and the diagnostics that a faulty rule is reported with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def printable(text: str) -> str:
    """A text as a terminal may show it: what is not printable, line feeds aside, as an escape.

    Rules and arguments come from anywhere: a control sequence in one must not reach a terminal.
    """
    return "\n".join(map(_line, text.split("\n")))


def _line(text: str) -> str:
    """A text that shall stay on its line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault of a rule: where it is, what is wrong, and a way out where one is known.

    `line` and `column` are 1-based, columns in characters; `width` is the length of the span that
    the caret marks; `source` is the text of the line.
    """

    file: str
    line: int
    column: int
    message: str
    source: str = ""
    width: int = 1
    hint: str | None = None

    def __str__(self) -> str:
        place = f"{_line(self.file)}:{self.line}:{self.column}"
        text = f"{place}: error: {_line(self.message)}"
        if self.source:
            source, start, width = self._excerpt()
            marks = "^" * max(1, min(width, len(source) - start))
            text += f"\n{self.line:5} | {source}\n{'':5} | {' ' * start}{marks}"
        if self.hint:
            text += f"\n  hint: {_line(self.hint)}"
        return text

    def _excerpt(self) -> tuple[str, int, int]:
        """The source line as it is printed, and where the span begins and how long it is there.

        Of a very long line it is the part around the span.
        """
        first = max(0, self.column - 81) if len(self.source) > 200 else 0
        line, start = self.source[first : first + 200], self.column - 1 - first
        # An escape is longer than its character.
        before, inside = line[:start], line[start : start + self.width]
        gap = max(0, start - len(line))  # a span may lie behind the last character
        return _line(line), len(_line(before)) + gap, len(_line(inside))


class FwgenError(Exception):
    """What all errors share: a text that can be printed."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class RuleError(FwgenError, ValueError):
    """The rule is faulty. `str()` is the whole message, place first, `diagnostics` its parts."""

    def __init__(self, diagnostics: Sequence[Diagnostic] | str) -> None:
        self.diagnostics = () if isinstance(diagnostics, str) else tuple(diagnostics)
        text = diagnostics if isinstance(diagnostics, str) else "\n".join(map(str, diagnostics))
        super().__init__(text)


class RuleNotFound(RuleError):  # noqa: N818 (it says what is wrong, not how)
    """No such rule: an unknown name, or a file that cannot be read."""


class ArgumentError(FwgenError, ValueError):
    """An argument of a call does not fit: names it, what was expected and what came."""


class CallError(ArgumentError, TypeError):
    """An argument that does not exist or is of another kind; a TypeError too, as Python's own."""


class UnsupportedError(FwgenError, RuntimeError):
    """What was asked for cannot be served: says why, and which keyword would serve."""


class InternalError(FwgenError, RuntimeError):
    """A fault of fwgen itself: says so and what to attach to a report."""
