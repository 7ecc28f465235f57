"""Lines of a formula as Python reads them; the whitelist comes afterwards (`grammar`)."""

from __future__ import annotations

import ast
import re
import warnings

from fwgen.language.source import Report, Text
from fwgen.language.yaml_file import FORBIDDEN

DEEPEST = 100
MOST_FAULTS = 20


def plain(text: Text, report: Report) -> bool:
    """Refuse what the parser below would read as something else, or choke on."""
    for number, line in enumerate(text.value.split("\n")):
        code = line.partition("#")[0]
        if bad := re.search(r"[^\x20-\x7e]", code) or FORBIDDEN.search(line):
            code_point = f"U+{ord(bad[0]):04X}"
            shown = f"`{bad[0]}` ({code_point})" if bad[0].isprintable() else code_point
            message = f"the character {shown} is not part of a formula"
            start, end = bad.span()
            while start and (line[start - 1].isalnum() or line[start - 1] == "_"):
                start -= 1
            report.error(text.span(number, start, end), message, "names are ASCII letters")
            return False
        if bad := re.search(r"(?:[-+~(\[{]\s*|not\s+){101}", code):
            message = f"nested more than {DEEPEST} deep"
            report.error(text.span(number, bad.start(), bad.end()), message)
            return False
    return True


def python_lines(text: Text, report: Report) -> tuple[ast.Module | None, frozenset[int]]:
    """The lines as Python reads them, and the numbers of those that it could not read.

    A line that is reported is read again as an assignment of nothing to the name on its left, so
    that the others are heard as well.
    """
    lines, faulty = text.value.split("\n"), set[int]()
    for _ in range(MOST_FAULTS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                module = ast.parse("\n".join(lines))
            alone = bool(faulty) and len(module.body) <= len(faulty)
            return (None if alone else module), frozenset(faulty)
        except SyntaxError as error:
            line = _report_syntax(text, lines, error, report)
            if line in faulty:
                break
            faulty.add(line)
            lines[line] = _placeholder(lines, line)
        except (RecursionError, MemoryError, ValueError):
            report.error(text.span(), f"nested more than {DEEPEST} deep, or too long")
            break
    return None, frozenset(faulty)


def _placeholder(lines: list[str], number: int) -> str:
    """What stands for a line that was reported: it assigns the same name, or loops as well."""
    line, below = lines[number], "".join(lines[number + 1 : number + 2])
    indent = line[: len(line) - len(line.lstrip())]
    if len(below) - len(below.lstrip()) > len(indent):
        return f"{indent}for _ in ...:"
    assigned = re.match(r"\s*(\w+)\s*=(?!=)", line)
    return f"{indent}{assigned[1]} = ..." if assigned else f"{indent}..."


def _report_syntax(text: Text, lines: list[str], error: SyntaxError, report: Report) -> int:
    """Report what Python could not read; the number of its line."""
    line = (error.lineno or 1) - 1
    if line >= len(lines):
        line, error.offset = len(lines) - 1, len(lines[-1])
    start = max(0, (error.offset or 1) - 1)
    same = error.end_lineno == error.lineno and (error.end_offset or 0) > start + 1
    end = (error.end_offset or 0) - 1 if same else start + 1
    words = (error.msg or "invalid syntax").partition(". Perhaps")[0]
    left_open = _left_open(lines[line])
    if not same and left_open is not None:
        start, end = left_open, left_open + 1
        words = f"'{lines[line][start]}' was never closed"
    report.error(text.span(line, start, end), f"this is no formula: {words}")
    return line


def _left_open(line: str) -> int | None:
    """Where the innermost bracket stands that a line opens and does not close."""
    opened: list[int] = []
    for place, letter in enumerate(line.partition("#")[0]):
        if letter in "([{":
            opened.append(place)
        elif letter in ")]}" and opened:
            opened.pop()
    return opened[-1] if opened else None
