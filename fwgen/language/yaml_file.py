"""YAML text -> tree of scalars with places. Nothing is resolved: every scalar stays a string."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from fwgen.language.source import Report, SourceFile, Span, Text, fail, left_open

MOST_BYTES = 64 * 1024
DEEPEST = 100
FORMULA_HINT = "quote it, or use `|` and write it on the next line"
_Mark = Any  # the stubs of the two YAML readers do not agree on one
FORBIDDEN = re.compile("[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list, with the place where it begins."""

    items: tuple[Node, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys and values in the order of the file, with the place where they begin."""

    entries: tuple[tuple[Text, Node], ...]
    span: Span

    def get(self, key: str) -> Node | None:
        """The value under a key, or None."""
        return next((value for name, value in self.entries if name.value == key), None)


Node = Text | Sequence | Mapping


def span_of(node: Node) -> Span:
    """The place of a node: its first line."""
    return node.span() if isinstance(node, Text) else node.span


def decode(name: str, content: bytes) -> SourceFile:
    """The text of a file; a RuleError where it is none that a rule may be written in."""
    if len(content) > MOST_BYTES:
        where = Span(SourceFile(name, ()))
        raise fail(where, f"the file has more than {MOST_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        good = content[: error.start].decode("utf-8", "replace")
        file = SourceFile.of(name, content.decode("utf-8", "replace"))
        number, column = good.count("\n") + 1, len(good.rpartition("\n")[2]) + 1
        raise fail(Span(file, number, column), "the file is not UTF-8 text") from None
    file = SourceFile.of(name, text)
    for number, line in enumerate(file.lines, 1):
        _check_nesting(file, number, line)
        if bad := FORBIDDEN.search(line):
            what = "a tab" if bad[0] == "\t" else f"the character U+{ord(bad[0]):04X}"
            hint = "indent with spaces" if bad[0] == "\t" else None
            raise fail(Span(file, number, bad.start() + 1), f"{what} is not allowed", hint)
    return file


def _check_nesting(file: SourceFile, number: int, line: str) -> None:
    """Refuse deep brackets of one line before the YAML scanner looks ahead over them."""
    depth = 0
    for column, character in enumerate(line, 1):
        depth += (character in "[{(") - (character in ")}]")
        if depth > DEEPEST + 1:
            raise fail(Span(file, number, column), f"nested more than {DEEPEST} deep")


def read(file: SourceFile, report: Report) -> Mapping:
    """The document of a file, whose top level is a mapping.

    A key that occurs twice is reported, and its first value stands; any other fault raises a
    RuleError with a place.
    """
    events = yaml.parse("\n".join(file.lines), Loader=yaml.SafeLoader)
    try:
        node = _Reader(file, report).document(events)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        span = _span(file, mark) if mark else Span(file)
        words = ", ".join(part for part in (error.context, error.problem) if part)
        raise fail(span, f"this is not YAML: {words}", _hint(span)) from None
    except yaml.YAMLError as error:
        raise fail(Span(file), f"this is not YAML: {error}") from None
    if not isinstance(node, Mapping):
        raise fail(Span(file), "a rule is a mapping with sections `name`, `inputs`, `state`, …")
    return node


def _hint(span: Span) -> str | None:
    return FORMULA_HINT if re.search(r"[:,]\s*\S", span.source) else None


def _span(file: SourceFile, mark: _Mark) -> Span:
    line = min(mark.line + 1, len(file.lines))
    width = len(file.lines[line - 1]) if file.lines else 0
    return Span(file, line, min(mark.column, width) + 1)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Events of one file -> nodes."""

    file: SourceFile
    report: Report

    def document(self, events: Iterator[yaml.Event]) -> Node | None:
        node: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise fail(_span(self.file, event.start_mark), "a rule is one document")
                if event.version or event.tags:
                    place = _span(self.file, event.start_mark)
                    raise fail(place, "YAML directives are not allowed")
            elif isinstance(event, yaml.NodeEvent):
                node = self.node(event, events, 0)
        return node

    def node(self, event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
        span = _span(self.file, event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            raise fail(span, "aliases are not allowed: write the value out")
        if getattr(event, "anchor", None) is not None:
            raise fail(span, "anchors are not allowed")
        if getattr(event, "tag", None) is not None:
            raise fail(span, "tags are not allowed")
        if depth > DEEPEST:
            raise fail(span, f"nested more than {DEEPEST} deep")
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(self.file, event, span)
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                items.append(self.node(item, events, depth + 1))
            return Sequence(tuple(items), span)
        return self.mapping(span, events, depth)

    def mapping(self, span: Span, events: Iterator[yaml.Event], depth: int) -> Mapping:
        entries: dict[str, tuple[Text, Node]] = {}
        while not isinstance(item := next(events), yaml.MappingEndEvent):
            key = self.node(item, events, depth + 1)
            if not isinstance(key, Text):
                raise fail(span_of(key), "a key is one word", FORMULA_HINT)
            if key.value == "<<":
                raise fail(key.span(), "merge keys are not allowed")
            value = self.node(next(events), events, depth + 1)
            if key.value in entries:
                first = entries[key.value][0].span().line
                self.report.error(key.span(), f"`{key.value}` occurs twice; first on line {first}")
            else:
                entries[key.value] = key, value
        return Mapping(tuple(entries.values()), span)


def _scalar(file: SourceFile, event: yaml.ScalarEvent, span: Span) -> Text:
    start_mark: _Mark = event.start_mark
    end_mark: _Mark = event.end_mark
    first, last = start_mark.line, end_mark.line
    if event.style == ">":
        raise fail(span, "folded text is not allowed", "use `|`")
    if event.style == "|":
        value = event.value.rstrip("\n")
        places = []
        for offset, content in enumerate(value.split("\n"), first + 1):
            raw = file.lines[offset] if offset < len(file.lines) else ""
            places.append((offset + 1, len(raw) - len(content) + 1))
        return Text(file, value, tuple(places))
    if last != first:
        opened = left_open(file.lines[first][: start_mark.column])
        if opened is not None and not event.style:
            bracket = Span(file, first + 1, opened + 1)
            raise fail(bracket, f"this `{file.lines[first][opened]}` is not closed on its line")
        raise fail(span, "a plain or quoted text ends on its line", "use `|` for several lines")
    if not event.style:
        return Text(file, event.value, ((first + 1, span.column),))
    columns = _quoted(file.lines[first], start_mark.column + 1, event.style)
    lines = event.value.split("\n")
    spread: list[tuple[int, int | tuple[int, ...]]] = []
    start = 0
    for line in lines:
        spread.append((first + 1, tuple(columns[start : start + len(line)])))
        start += len(line) + 1
    return Text(file, event.value, tuple(spread))


def _quoted(line: str, start: int, style: str) -> list[int]:
    """The 1-based column of every character of a quoted text that opens before `start`."""
    columns = []
    position = start
    while position < len(line):
        width = 1
        if style == "'" and line[position] == "'":
            if line[position : position + 2] != "''":
                break
            width = 2
        elif style == '"' and line[position] == '"':
            break
        elif style == '"' and line[position] == "\\":
            width = {"x": 4, "u": 6, "U": 10}.get(line[position + 1 : position + 2], 2)
        columns.append(position + 1)
        position += width
    return columns
