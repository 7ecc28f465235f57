"""The first lines of a generated file: the rule, its hash, and the command that makes it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

MARKS = {".py": "#", ".cpp": "//"}


def compile_command(
    rule: str,
    constants: Mapping[str, float] | None = None,
    maps: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> str:
    """The command that makes the files of a rule: no paths, one line, sorted."""
    words = ["fwgen", "compile", rule]
    for name, value in sorted((constants or {}).items()):
        words += ["--set", f"{name}={value}"]
    for name, body in sorted((maps or {}).items()):
        words += ["--map", f"{name}={body}"]
    return " ".join(map(_quoted, [*words, *options]))


def _quoted(word: str) -> str:
    """A word as a shell reads it back; line breaks and the like are written as escapes."""
    if word.isprintable():
        return shlex.quote(word)
    body = "".join(c if c.isprintable() else _escape(c) for c in word.replace("\\", "\\\\"))
    return "$'{}'".format(body.replace("'", r"\'"))


def _escape(character: str) -> str:
    return {"\n": r"\n", "\t": r"\t"}.get(character, f"\\U{ord(character):08x}")


def headed(files: Mapping[str, str], rule: str, digest: str, command: str) -> dict[str, str]:
    """Files by name, each below a comment that names its rule; equations follow in the text."""
    lines = (
        f"The rule {rule}, hash {digest}.",
        f"Made by `{command}`; compile again, do not edit.",
    )
    found = {}
    for name, text in files.items():
        mark = MARKS[name[name.rindex(".") :]]
        found[name] = "".join(f"{mark} {line}\n" for line in lines) + text
    return found
