"""Names in C++: whatever a rule calls its arrays and dims, without keywords and collisions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fwgen.ir.dims import ONE, Dim
from fwgen.ir.nodes import Index, Var

KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class compl concept const consteval constexpr constinit const_cast continue co_await
co_return co_yield decltype default delete do double dynamic_cast else enum explicit export
extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
nullptr operator or or_eq private protected public register reinterpret_cast requires return
short signed sizeof static static_assert static_cast struct switch template this thread_local
throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while
xor xor_eq linux unix
"""
OURS = """
real size fw free aligned_alloc args main call space n h T C TC c0 tc t tp e e0 e1 i0 b j r j0 some
rows fours at at_row step to block sum position NV L kept
"""
ENDS = re.compile(r"_(all|from|row|rows|to|at|ahead\d+)$")
"""What the templates append to a name to make another one."""
RESERVED = frozenset(KEYWORDS.split()) | frozenset(OURS.split())

MACROS = ("FW", "_")
"""How macros begin, ours and those of compilers."""


class Names:
    """Hands out a C++ identifier for each key, the same one every time."""

    def __init__(self, reserved: Iterable[str] = RESERVED) -> None:
        self._taken = set(reserved)
        self._given: dict[object, str] = {}

    def of(self, key: object, wish: str) -> str:
        """The identifier of `key`: `wish`, with underscores where that is taken."""
        if key not in self._given:
            name = "".join(c if c.isalnum() or c == "_" else "_" for c in wish)
            if name.startswith(MACROS):
                name = f"x{name}"
            while name in self._taken or ENDS.search(name):
                name += "_"
            self._taken.add(name)
            self._given[key] = name
        return self._given[key]


def dim_text(dim: Dim, names: Names) -> str:
    """A size as a C++ expression over the constants of the free dims."""
    parts = []
    for monomial, coefficient in dim.terms:
        factors = [names.of(("dim", name), f"n_{name}") for name in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, str(coefficient))
        parts.append(" * ".join(factors))
    return " + ".join(parts).replace("+ -", "- ") or "0"


def wrapped(text: str) -> str:
    """In parentheses where the text is more than a name or a number."""
    return text if text.replace("_", "a").isalnum() else f"({text})"


def index_text(index: Index, values: dict[Var, str], names: Names) -> str:
    """An index expression as C++; `values` gives the text of each variable."""
    parts = []
    for coefficient, var in index.terms:
        value = values[var]
        if coefficient != ONE:
            value = f"{wrapped(dim_text(coefficient, names))} * {wrapped(value)}"
        parts.append(value)
    if index.offset.terms or not parts:
        parts.append(dim_text(index.offset, names))
    text = " + ".join(parts).replace("+ -", "- ")
    if index.modulo is not None:
        return f"fw::modulo({text}, {dim_text(index.modulo, names)})"
    return text
