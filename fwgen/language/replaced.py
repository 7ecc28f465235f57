"""What `--set` and `--map` replace of a rule, and the faults of replacing what is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fwgen.language.declarations import Declarations, MapText
from fwgen.language.names import did_you_mean
from fwgen.language.source import Report, SourceFile, Span, Text


def replace_constants(found: Declarations, given: Mapping[str, int | float]) -> list[str]:
    """Put other numbers in; the names that are no constants of the rule.

    No section but the constants has been read yet: sizes may be made of them.
    """
    for name in found.constants.keys() & given.keys():
        found.constants[name] = given[name]
    return [name for name in given if name not in found.spans]


def no_constants(found: Declarations, names: Iterable[str], report: Report) -> None:
    """Report names that were to be constants."""
    for name in names:
        hint = did_you_mean(name, found.constants)
        if name in found.maps:
            hint = f"`{name}` is a feature map: `--map {name}=EXPR`, or `maps=` in Python"
        file = SourceFile(f"<set {name}>", (name,))
        report.error(Span(file, 1, 1, len(name)), f"the rule has no constant `{name}`", hint)


def replace_maps(found: Declarations, given: Mapping[str, str], report: Report) -> None:
    """Put other bodies in, under the arguments that the maps have."""
    for name, text in given.items():
        shown = text.encode("utf-8", "replace").decode()  # what messages can be printed with
        file = SourceFile.of(f"<map {name}>", shown)
        if name not in found.maps:
            hint = did_you_mean(name, found.maps)
            if name in found.constants:
                hint = f"`{name}` is a constant: `--set {name}=NUMBER`, or `set=` in Python"
            report.error(Span(file), f"the rule has no feature map `{name}`", hint)
            continue
        old = found.maps[name]
        found.maps[name] = MapText(name, old.parameters, True, Text.plain(file, text), old.span)
