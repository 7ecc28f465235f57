"""LaTeX of reports: what no typesetter would take is found without one."""

from __future__ import annotations

import re
from functools import cache

import pytest

from fwgen.commands.report import report_latex, report_markdown
from fwgen.driver import Compilation, compile_rule
from fwgen.emit.latex import Latex, dim_latex, escaped, symbol
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Apply, Const, Load
from fwgen.language import list_rules, load_rule

ALWAYS = {"delta", "delta_lstm", "fwm", "gdn2", "longhorn", "mlstm", "performer", "srwm"}
RULES = [
    name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in list_rules()
]


@cache
def compiled(name: str) -> Compilation:
    return compile_rule(load_rule(name), targets=())


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("k", "k"),
        ("beta", r"\beta"),
        ("W_1", "W^{(1)}"),
        ("kf", r"\mathrm{kf}"),
        ("kf_1", r"\mathrm{kf}^{(1)}"),
        ("phi_q", r"\phi^{\mathrm{q}}"),
        ("W_i_1", r"W^{\mathrm{i}(1)}"),
        ("favor_M", r"\mathrm{favor\_M}"),
        ("_x", r"\mathrm{\_x}"),
    ],
)
def test_symbol(name: str, wanted: str) -> None:
    assert symbol(name) == wanted


def test_sizes_and_text() -> None:
    K, M = Dim.of("K"), Dim.of("map_M")
    assert dim_latex(K * K * 2 - M + 1) == r"2\,K^{2} - \mathrm{map\_M} + 1"
    assert escaped(r"50% of a_b \ {x}") == r"50\% of a\_b \textbackslash{} \{x\}"


def test_powers_and_brackets() -> None:
    printer = Latex({"W_1": symbol("W_1"), "k": "k", "s": "s"})
    s, w = Load("s"), Load("W_1")
    assert printer.scalar(Apply("square", (s,))) == "s^{2}"
    assert printer.scalar(Apply("square", (w,))) == r"\left(W^{(1)}\right)^{2}"
    assert printer.scalar(Apply("mul", (Const(2), s, s, s))) == r"2\, s^{3}"
    assert printer.scalar(Apply("mul", (s, Apply("sub", (s, w))))).count(r"\left(") == 1


def display_blocks(text: str) -> list[str]:
    return re.findall(
        r"\\begin\{(?:align\*|aligned)\}\n(.*?)\\end\{(?:align\*|aligned)\}", text, re.S
    )


@pytest.mark.parametrize("name", RULES)
def test_fragment_is_well_formed(name: str) -> None:
    text = report_latex(compiled(name))
    stack: list[str] = []
    for kind, environment in re.findall(r"\\(begin|end)\{([a-z*]+)\}", text):
        if kind == "begin":
            stack.append(environment)
        else:
            assert stack.pop() == environment
    assert not stack and text.count(r"\begingroup") == text.count(r"\endgroup") == 1
    plain = re.sub(r"\\[{}]", "", text)
    assert plain.count("{") == plain.count("}")
    assert text.count(r"\left") == text.count(r"\right")
    assert text.replace(r"\$", "").count("$") % 2 == 0
    assert not re.search(r"(?<!\\)[#~]", text)
    for line in text.splitlines():
        if line.lstrip().startswith((r"\item", r"\noindent", r"\subsection")):
            outside = re.sub(r"\$[^$]*\$", "", line)
            assert not re.search(r"(?<!\\)[_^&%]", outside), line


@pytest.mark.parametrize("name", RULES)
def test_every_row_has_one_mark_and_no_double_script(name: str) -> None:
    blocks = display_blocks(report_latex(compiled(name)))
    assert blocks
    for block in blocks:
        flat = re.sub(r"\\begin\{cases\}|\\end\{cases\}", "", _without_cases(block))
        for row in flat.split("\\\\\n"):
            assert row.count("&") == 1, row
            assert not re.search(r"\}\s*[_^]\{[^{}]*\}\s*[_^]\{[^{}]*\}\s*[_^]", row), row


def _without_cases(block: str) -> str:
    """Cases, innermost first, as a letter."""
    found = re.compile(r"\\begin\{cases\}((?!\\begin\{cases\}).)*?\\end\{cases\}", re.S)
    while found.search(block):
        block = found.sub("c", block)
    return block


@pytest.mark.parametrize("name", sorted(ALWAYS))
def test_formulas_can_be_set(name: str) -> None:
    """Matplotlib's typesetter, which knows no environments, takes every row."""
    from matplotlib.mathtext import MathTextParser

    parser = MathTextParser("path")
    report = report_markdown(compiled(name), "fwgen compile x")
    rows = [r for b in display_blocks(report) for r in _without_cases(b).split("\\\\\n")]
    rows += re.findall(r"\$([^$\n]+)\$", report.replace("```", ""))
    assert len(rows) > 10
    for row in rows:
        known = re.sub(r"\\text\{([^{}]*)\}", r"\\mathrm{\1}", row.replace("&", "").strip())
        for new, old in ((r"\qquad", ""), (r"\mathrel{+}", "+"), (r"\bmod", r"\mathrm{mod}")):
            known = known.replace(new, old)
        known = known.replace(r"\le ", r"\leq ").replace(r"\ge ", r"\geq ")
        parser.parse(f"${known}$")


@pytest.mark.parametrize("name", RULES)
def test_markdown_fences_are_closed_and_no_section_is_empty(name: str) -> None:
    text = report_markdown(compiled(name), "fwgen compile x")
    assert text.count("```") % 2 == 0
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        assert title.strip() and body.strip(), title
    assert "\n\n\n" not in text
