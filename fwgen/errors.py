"""The four errors a user can meet, and the diagnostics that a faulty rule is reported with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
        text = f"{self.file}:{self.line}:{self.column}: error: {self.message}"
        if self.source:
            source, column = self._excerpt()
            marks = "^" * max(1, min(self.width, len(source) - column + 1))
            text += f"\n{self.line:5} | {source}\n{'':5} | {' ' * (column - 1)}{marks}"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text

    def _excerpt(self) -> tuple[str, int]:
        """The source line and the column in it; of a very long line, the part around the span."""
        if len(self.source) <= 200:
            return self.source, self.column
        start = max(0, self.column - 81)
        return self.source[start : start + 200], self.column - start


class RuleError(ValueError):
    """The rule is faulty. `str()` is the whole message, place first, `diagnostics` its parts."""

    def __init__(self, diagnostics: Sequence[Diagnostic] | str) -> None:
        self.diagnostics = () if isinstance(diagnostics, str) else tuple(diagnostics)
        text = diagnostics if isinstance(diagnostics, str) else "\n".join(map(str, diagnostics))
        super().__init__(text)


class RuleNotFound(RuleError):  # noqa: N818 (it says what is wrong, not how)
    """No such rule: an unknown name, or a file that cannot be read."""


class ArgumentError(ValueError):
    """An argument of a call does not fit: names it, what was expected and what came."""


class UnsupportedError(RuntimeError):
    """What was asked for cannot be served: says why, and which keyword would serve."""


class InternalError(RuntimeError):
    """A fault of fwgen itself: says so and what to attach to a report."""
