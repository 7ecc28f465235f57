"""Which words may be names, and what a misspelled one may have meant."""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Iterable

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RULE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
MOST_COMPARED = 200
"""Names that a misspelled one is compared with; of more, those of its length."""
SYNTAX = frozenset({"t", "prev", "row", "col"})


def fault_of(name: str, functions: Iterable[str]) -> str | None:
    """Why `name` cannot name a quantity of a rule, or None where it can."""
    if not name.isascii() or not IDENTIFIER.fullmatch(name):
        return f"`{name}` is no name: a name has ASCII letters, digits and `_`"
    if "__" in name:
        return f"`{name}` is no name: two `_` in a row are not allowed"
    if keyword.iskeyword(name):
        return f"`{name}` is a keyword of Python and cannot be a name"
    if name in SYNTAX or name in functions:
        return f"`{name}` is a word of the language and cannot be a name"
    return None


def fault_of_dim(name: str) -> str | None:
    """Why `name` cannot name a size; sizes are a namespace of their own."""
    if not name.isascii() or not IDENTIFIER.fullmatch(name) or "__" in name:
        return f"`{name}` is no name of a size"
    if keyword.iskeyword(name):
        return f"`{name}` is a keyword of Python and cannot be a name"
    return None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is nearest, if one is near; in other letter case it is the same."""
    alike = sorted(known, key=lambda word: abs(len(word) - len(name)))[:MOST_COMPARED]
    same = [word for word in alike if word.lower() == name.lower()]
    near = same or difflib.get_close_matches(name, alike, n=1, cutoff=0.6)
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint with the nearest known name, if one is near."""
    near = nearest(name, known)
    return None if near is None else f"did you mean `{near}`?"
