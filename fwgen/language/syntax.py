"""Lines of a formula as Python reads them; the whitelist comes afterwards (`grammar`)."""

from __future__ import annotations

import ast
import re
import warnings

from fwgen.language.source import Report, Text, left_open
from fwgen.language.yaml_file import FORBIDDEN

DEEPEST = 100
MOST_FAULTS = 20


def python_lines(text: Text, report: Report) -> tuple[ast.Module | None, frozenset[int]]:
    """The lines as Python reads them, and the numbers of those that it could not read.

    A line that is reported is read again as an assignment of nothing to the name on its left, so
    that the others are heard as well; not where it is a part of a longer formula.
    """
    lines, faulty = text.value.split("\n"), set[int]()
    for number, line in enumerate(lines):
        if _is_refused(text, number, line, report):
            inside = left_open("\n".join(part.partition("#")[0] for part in lines[:number]))
            if inside is not None or len(faulty) == MOST_FAULTS:
                return None, frozenset(faulty)
            faulty.add(number)
            lines[number] = _placeholder(lines, number)
    for _ in range(MOST_FAULTS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                module = ast.parse("\n".join(lines))
            alone = bool(faulty) and len(module.body) <= len(faulty)
            return (None if alone else module), frozenset(faulty)
        except SyntaxError as error:
            number = _report_syntax(text, lines, error, report)
            if number in faulty:
                break
            faulty.add(number)
            lines[number] = _placeholder(lines, number)
        except (RecursionError, MemoryError, ValueError):
            report.error(text.span(), f"nested more than {DEEPEST} deep, or too long")
            break
    return None, frozenset(faulty)


def _is_refused(text: Text, number: int, line: str, report: Report) -> bool:
    """Report what the parser would read as something else, or choke on."""
    code = line.partition("#")[0]
    if bad := re.search(r"[^\x20-\x7e]", code) or FORBIDDEN.search(line):
        code_point = f"U+{ord(bad[0]):04X}"
        shown = f"`{bad[0]}` ({code_point})" if bad[0].isprintable() else code_point
        message = f"the character {shown} is not part of a formula"
        start, end = bad.span()
        while start and (line[start - 1].isalnum() or line[start - 1] == "_"):
            start -= 1
        report.error(text.span(number, start, end), message, "names are ASCII letters")
        return True
    if bad := re.search(r"(?:[-+~(\[{]\s*|not\s+){101}", code):
        message = f"nested more than {DEEPEST} deep"
        report.error(text.span(number, bad.start(), bad.end()), message)
        return True
    return False


def _placeholder(lines: list[str], number: int) -> str:
    """What stands for a line that was reported: it assigns the same name, or loops as well."""
    line, below = lines[number], "".join(lines[number + 1 : number + 2])
    indent = line[: len(line) - len(line.lstrip())]
    if len(below) - len(below.lstrip()) > len(indent):
        return f"{indent}for _ in ...:"
    assigned = re.match(r"\s*(\w+)\s*=(?!=)", line, re.ASCII)
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
    bracket = left_open(lines[line])
    if not same and bracket is not None:
        start, end = bracket, bracket + 1
        words = f"'{lines[line][start]}' was never closed"
    report.error(text.span(line, start, end), f"this is no formula: {words}")
    return line
