"""`Rule`: a rule that has been read, checked and lowered; its text, and loading one."""

from __future__ import annotations

import contextlib
import hashlib
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Never

from fwgen.errors import ArgumentError, RuleError, RuleNotFound, printable
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Step
from fwgen.language import yaml_file
from fwgen.language.arguments import by_name, no_rule, replacements, unknown_keyword
from fwgen.language.declarations import Declarations
from fwgen.language.lower import formulas, step_of, unused
from fwgen.language.names import did_you_mean
from fwgen.language.sections import declarations
from fwgen.language.shipped import feature_maps, list_rules, rule_path
from fwgen.language.source import Report, SourceFile, Span, fail
from fwgen.language.yaml_text import rule_text

Constants = Mapping[str, int | float]
Dims = dict[str, tuple[Dim, ...]]


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule without faults. Equal text, constants and maps make equal rules.

    `inputs`, `params`, `buffers` and `states` map names to dims in the order of the file; `params`
    and `buffers` include the tensors of the shipped feature maps that are used. `feature_maps`,
    `update` and `output` hold the formulas as written. `warnings` are whole lines.
    """

    name: str
    doc: str
    constants: dict[str, int | float]
    inputs: Dims
    params: Dims
    buffers: Dims
    states: Dims
    feature_maps: dict[str, str]
    update: str
    output: str
    file: str
    lines: tuple[str, ...] = field(repr=False)
    warnings: tuple[str, ...]
    step: Step = field(repr=False)
    text: str = field(repr=False)
    hash: str
    document: yaml_file.Mapping = field(repr=False)

    def to_yaml(self) -> str:
        """The rule as a file, with its constants and maps put in; a fixed point of loading."""
        return self.text

    @property
    def summary(self) -> str:
        """The documentation on one line that can be printed and written into any file."""
        return printable(" ".join(self.doc.split()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and other.hash == self.hash

    def __hash__(self) -> int:
        return hash(self.hash)


def load_rule(
    source: str | Path | Rule | Callable[..., Any],
    *,
    set: Constants | None = None,
    maps: Mapping[str, str] | None = None,
    **unknown: Never,
) -> Rule:
    """Read a rule from a path, a shipped name, a decorated function, or another rule.

    `set` replaces constants of the rule, `maps` the bodies of its feature maps. Raises RuleError
    for a faulty rule, RuleNotFound (a RuleError) where there is none, ArgumentError for arguments
    that do not exist or are of another kind.
    """
    check_keywords("load_rule", source, unknown)
    constants, maps = by_name("set", set, "{'nu': 2}"), replacements(maps)
    decorated = getattr(source, "__fwgen_rule__", None)
    if isinstance(decorated, Rule):
        source = decorated
    if isinstance(source, Rule):
        if not constants and not maps:
            return source
        file = SourceFile(source.file, source.lines)
        return from_document(source.document, file, Report(), constants, maps)
    if not isinstance(source, str | Path):
        raise no_rule(source)
    text = _file(source)
    report = Report()
    return from_document(yaml_file.read(text, report), text, report, constants, maps)


def reread(rule: Rule) -> Rule:
    """The same rule, read from its own text: its lines are those of `rule.text`."""
    file, report = SourceFile.of(f"{rule.name}.yaml", rule.text), Report()
    return from_document(yaml_file.read(file, report), file, report, {}, {})


def check_keywords(function: str, source: Any, unknown: Mapping[str, object]) -> None:
    """Raise an ArgumentError for a keyword that `function`, called for a rule, does not have."""
    for name, value in unknown.items():
        constants: Mapping[str, Any] = {}
        maps: Mapping[str, Any] = {}
        with contextlib.suppress(RuleError, ArgumentError):  # it may be one of this rule's
            rule = load_rule(source)
            constants, maps = rule.constants, rule.feature_maps
        raise unknown_keyword(function, name, value, constants, maps)


def _file(source: str | Path) -> SourceFile:
    """The text of a path, or of a shipped rule."""
    name, path = str(source), Path(source)
    if isinstance(source, str) and ("\n" in name or name.lstrip().startswith("{")):
        begin = reprlib.repr(name)
        hint = "write the text to a file and pass its path: `Path('rule.yaml').write_text(text)`"
        raise RuleNotFound(f"{begin} is no path or name, but a text\n  hint: {hint}")
    if isinstance(source, str) and name in list_rules() and not path.is_file():
        return yaml_file.decode(f"{name}.yaml", rule_path(name).read_bytes())
    looks_like_path = isinstance(source, Path) or "/" in name or name.endswith((".yaml", ".yml"))
    try:
        if looks_like_path or path.is_file():
            with path.open("rb") as stream:
                return yaml_file.decode(name, stream.read(yaml_file.MOST_BYTES + 1))
    except OSError as error:
        why = error.strerror or error
        raise RuleNotFound(f"cannot read the rule `{_short(name)}`: {why}") from None
    except RuleError:
        raise
    except ValueError as error:  # a path that no file can have
        raise RuleNotFound(f"cannot read the rule `{_short(name)}`: {error}") from None
    hint = did_you_mean(name, list_rules()) or "`fwgen list` shows the shipped rules"
    raise RuleNotFound(f"there is no rule `{_short(name)}`, shipped or as a file\n  hint: {hint}")


def _short(name: str) -> str:
    """A path as messages show it."""
    return name if len(name) <= 200 else f"{name[:100]}…{name[-80:]}"


def from_document(
    document: yaml_file.Mapping,
    file: SourceFile,
    report: Report,
    constants: Constants,
    maps: Mapping[str, str],
) -> Rule:
    """Check and lower a document; every independent fault is in the RuleError, `report`'s too."""
    constants = {name: _number(name, value) for name, value in constants.items()}
    try:
        return _checked(document, file, report, constants, maps)
    except RecursionError:
        raise fail(Span(file), "the rule nests too deep") from None


def plain_number(value: object) -> int | float | None:
    """A finite number of any numeric type as int or float, or None."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    if isinstance(value, Integral) and abs(int(value)) < 2**53:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= 1e308 else None


def _number(name: str, value: object) -> int | float:
    """A replaced constant as a plain number."""
    number = plain_number(value)
    if number is None:
        shown = reprlib.repr(value)
        place = Span(SourceFile(f"<set {name}>", (shown,)), width=len(shown))
        raise fail(place, f"the constant `{name}` is no finite number: {shown}")
    return number


def _checked(
    document: yaml_file.Mapping,
    file: SourceFile,
    report: Report,
    constants: Constants,
    maps: Mapping[str, str],
) -> Rule:
    found = declarations(document, file, report, constants, maps)
    shipped = feature_maps()
    read = formulas(found, shipped, report)
    step = step_of(found, read, report)
    report.check()
    assert step is not None
    unused(found, read, report)
    text = rule_text(found)
    used = [m.text for name, m in shipped.items() if name in text and read.maps[name] is m]
    content = "\n".join([text, *used])
    return _rule(found, step, text, content, report, document)


def _rule(
    found: Declarations,
    step: Step,
    text: str,
    content: str,
    report: Report,
    document: yaml_file.Mapping,
) -> Rule:
    def dims(role: str) -> Dims:
        return {array.name: array.dims for array in step.arrays if array.role == role}

    assert found.update is not None and found.output is not None
    return Rule(
        name=found.name,
        doc=found.doc,
        constants=dict(found.constants),
        inputs=dims("input"),
        params=dims("param"),
        buffers=dims("buffer"),
        states=dims("state"),
        feature_maps={name: m.text.value for name, m in found.maps.items()},
        update=found.update.value,
        output=found.output.value,
        file=found.file.name,
        lines=found.file.lines,
        warnings=tuple(report.warnings),
        step=step,
        text=text,
        hash=hashlib.sha256(content.encode()).hexdigest(),
        document=document,
    )


def lower(rule: Rule) -> Step:
    """The rule as Step IR; loading has reported every fault already."""
    return rule.step
