"""A report as plain text, as Markdown with LaTeX, and as a LaTeX fragment."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence

from fwgen.commands.report.blocks import (
    Block,
    Code,
    Equations,
    Formulas,
    Items,
    Line,
    Math,
    Paragraph,
    Section,
    Table,
    plain,
)
from fwgen.commands.report.equations import Equation, equation_parts
from fwgen.emit.latex import ADD, MUL, Latex, dim_latex, escaped
from fwgen.language import Rule

WIDTH = 100
WIDE = 80
"""Signs of a LaTeX line, roughly, before it goes on in a new one."""


def text(rule: Rule, sections: Sequence[Section]) -> str:
    """Plain text."""
    lines = [f"{rule.name}: {rule.summary}".rstrip(": ")]
    for section in sections:
        lines += ["", section.title]
        for block in section.blocks:
            lines += text_of(block)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def text_of(block: Block) -> list[str]:
    """The lines of a block as plain text."""
    match block:
        case Paragraph(line):
            return _wrapped(plain(line))
        case Items(lines):
            return [part for line in lines for part in _wrapped(plain(line))]
        case Equations(found):
            return [part for e in found for part in _broken(equation_parts(e), WIDTH, "    ")]
        case Formulas(formulas):
            return [f"    {formula.text}" for formula in formulas]
        case Table(rows):
            return _columns([[plain((cell,)) for cell in row] for row in rows])


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, initial_indent="  ", subsequent_indent="    ") or [""]


def _broken(
    parts: Sequence[str], width: int, indent: str, measure: Callable[[str], int] = len
) -> list[str]:
    """Parts side by side, on a new line with more indent where they would be too long."""
    lines = [indent + parts[0]]
    for part in parts[1:]:
        if measure(lines[-1]) + measure(part) < width:
            lines[-1] += " " + part
        else:
            lines.append(indent + "    " + part)
    return lines


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def markdown(rule: Rule, sections: Sequence[Section], command: str) -> str:
    """Markdown whose formulas are LaTeX between dollar signs and in `math` fences."""
    lines = [f"# {rule.name}", ""]
    lines += [_marked(rule.summary), ""] if rule.summary else []
    lines += [f"Rule hash `{rule.hash}`, made by `{command}`.", ""]
    lines += ["```yaml", rule.to_yaml().rstrip("\n"), "```"]
    for section in sections:
        lines += ["", f"## {section.title}"]
        for block in section.blocks:
            lines += ["", *_markdown(block)]
    return "\n".join(lines) + "\n"


def _markdown(block: Block) -> list[str]:
    match block:
        case Paragraph(line):
            return [_inline(line, _marked, "`{}`".format)]
        case Items(lines):
            return [f"- {_inline(line, _marked, '`{}`'.format)}" for line in lines]
        case Equations() | Formulas():
            return ["```math", *_aligned(block, "aligned"), "```"]
        case Table(rows):
            cells = [[_inline((cell,), _marked, "`{}`".format) for cell in row] for row in rows]
            ruler = [":--", *["--:"] * (len(cells[0]) - 1)]
            return [f"| {' | '.join(row)} |" for row in (cells[0], ruler, *cells[1:])]


def _marked(text: str) -> str:
    return re.sub(r"([\\*_<|$])", r"\\\1", text)


def _inline(line: Line, escape: Callable[[str], str], code: Callable[[str], str]) -> str:
    found = []
    for part in line:
        match part:
            case str():
                found.append(escape(part))
            case Code(word):
                found.append(code(word))
            case Math(_, tex):
                found.append(f"${tex}$")
    return "".join(found)


def latex(rule: Rule, sections: Sequence[Section]) -> str:
    r"""A LaTeX fragment for a document with amsmath; long derivations may break over pages."""
    lines = [
        f"% {rule.name}, rule hash {rule.hash}",
        r"% needs \usepackage{amsmath}",
        r"\begingroup\allowdisplaybreaks\sloppy",
    ]
    for section in sections:
        lines += ["", rf"\subsection*{{{escaped(section.title)}}}"]
        for block in section.blocks:
            lines += _latex(block)
    return "\n".join([*lines, r"\endgroup"]) + "\n"


def _latex(block: Block) -> list[str]:
    match block:
        case Paragraph(line):
            return ["", rf"\noindent {_inline(line, escaped, _texttt)}"]
        case Items(lines):
            items = [rf"  \item {_inline(line, escaped, _texttt)}" for line in lines]
            return [r"\begin{itemize}", *items, r"\end{itemize}"]
        case Equations() | Formulas():
            return _aligned(block, "align*")
        case Table(rows):
            return _tabular([[_inline((cell,), escaped, _texttt) for cell in row] for row in rows])


def _tabular(cells: Sequence[Sequence[str]]) -> list[str]:
    """A table, or where its rows are too wide a list of them."""
    if sum(4 + max(map(_visible, column)) for column in zip(*cells, strict=True)) < WIDE:
        body = [rf"  {' & '.join(row)} \\" for row in cells]
        return [rf"\begin{{tabular}}{{l{'r' * (len(cells[0]) - 1)}}}", *body, r"\end{tabular}"]
    head, *rows = cells
    items = [
        f"  \\item {row[0]}: "
        + "; ".join(
            f"{cell} {title}" for title, cell in zip(head[1:], row[1:], strict=True) if cell
        )
        for row in rows
    ]
    return [r"\begin{itemize}", *items, r"\end{itemize}"]


def _texttt(word: str) -> str:
    return rf"\texttt{{{escaped(word)}}}"


def _aligned(block: Equations | Formulas, environment: str) -> list[str]:
    if isinstance(block, Equations):
        rows = [row for e in block.equations for row in equation_rows(e, Latex(block.symbols))]
    else:
        rows = [formula.latex.replace(" = ", " &= ", 1) for formula in block.formulas]
    body = " \\\\\n  ".join(rows)
    return [rf"\begin{{{environment}}}", f"  {body}", rf"\end{{{environment}}}"]


def equation_rows(equation: Equation, printer: Latex) -> list[str]:
    """The rows of an equation in an aligned environment."""
    sign = r"\mathrel{+}=" if equation.adds else "="
    head = f"{printer.element(equation.target)} &{sign}"
    terms = []
    for n, term in enumerate(equation.terms):
        fold = ""
        if term.reduce is not None:
            name = {"sum": r"\sum", "max": r"\max", "min": r"\min"}[term.reduce]
            fold = rf"{name}_{{{','.join(var.name for var in term.over)}}} "
        level = MUL if term.negative or term.reduce is not None else ADD
        sign = "-" if term.negative else "+" if n else ""
        terms.append(f"{sign} {fold}{printer.scalar(term.body, level)}".strip())
    terms += [rf"\quad ({var.name} < {dim_latex(var.dim)})" for var in equation.ranges]
    rows = _broken([f"{head} {terms[0]}", *terms[1:]], WIDE, "", _visible)
    return [rows[0], *(rf"&\qquad {row.strip()}" for row in rows[1:])]


def _visible(tex: str) -> int:
    """About how many signs a LaTeX text shows."""
    hidden = r"\\(left|right|mathrm|operatorname|bar|frac|text|begin|end|mathrel|qquad)\b"
    return len(re.sub(r"[{}&^_\\, ]", "", re.sub(r"\\[a-zA-Z]+", "x", re.sub(hidden, "", tex))))
