"""Breaks lines of generated Python that are too long to read."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 96


def wrapped(line: str) -> list[str]:
    """One line if it is short, else one operand of its outermost sum or call per line."""
    if len(line) <= WIDTH:
        return [line]
    target, _, text = line.partition(" = ")
    for signs in ((" + ", " - "), (" * ", " / ")):
        cuts = sorted(cut for sign in signs for cut in _splits(text, sign))
        if cuts:
            bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
            parts = [text[a:b].strip() for a, b in bounds]
            return [f"{target} = (", *(f"    {part}" for part in parts), ")"]
    opening = _opening(text)
    if opening is None:
        return [line]
    inner = text[opening:-1]
    cuts = _splits(inner, ", ")
    bounds = zip([0, *cuts], [*cuts, len(inner)], strict=True)
    parts = [inner[a:b].removeprefix(", ") for a, b in bounds]
    return [f"{target} = {text[:opening]}", *(f"    {part}," for part in parts), ")"]


def _opening(text: str) -> int | None:
    """Just inside the bracket that the text's last character closes."""
    depth = 0
    for n in range(len(text) - 1, -1, -1):
        depth += (text[n] in ")]") - (text[n] in "([")
        if depth == 0:
            return n + 1 if n < len(text) - 1 else None
    return None


def _splits(text: str, sign: str) -> list[int]:
    """Where `sign` occurs outside all brackets."""
    depth, found = 0, []
    for n, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth == 0 and n and text.startswith(sign, n):
            found.append(n)
    return found


def definition(name: str, arguments: Sequence[str], returns: str) -> list[str]:
    """The head of a function."""
    line = f"def {name}({', '.join(arguments)}) -> {returns}:"
    if len(line) <= 100:
        return [line]
    return [f"def {name}(", *(f"    {argument}," for argument in arguments), f") -> {returns}:"]


def call(head: str, arguments: Sequence[str]) -> list[str]:
    """A call inside a loop of a function; `head` ends with its opening bracket."""
    line = f"{head}{', '.join(arguments)})"
    if len(line) <= 100:
        return [line]
    return [head, *(f"            {argument}," for argument in arguments), "        )"]
