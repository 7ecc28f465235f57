"""A decorated Python function -> the document of a rule. The function is read, never run."""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never, TypeVar

from fwgen.errors import ArgumentError, CallError
from fwgen.language import yaml_file
from fwgen.language.arguments import by_name
from fwgen.language.dims import DimError, parse_dim
from fwgen.language.names import did_you_mean
from fwgen.language.rule import Rule, from_document, plain_number
from fwgen.language.source import Report, SourceFile, Span, Text, fail
from fwgen.language.yaml_file import Node, Sequence

F = TypeVar("F", bound=Callable[..., Any])
Sections = Mapping[str, Mapping[str, Any]]
EXAMPLES = {
    "constants": "{'nu': 2}",
    "inputs": "{'q': 'K', 'beta': 'scalar'}",
    "params": "{'u': 'V'}",
    "buffers": "{'omega': 'M K'}",
    "state": "{'W': 'V K'}",
    "feature_map": "{'phi(x)': 'elu(x) + 1'}",
}
USAGE = "write `@fwgen.rule(inputs={…}, state={…})` above the function"


def rule(
    *misplaced: object,
    inputs: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    buffers: Mapping[str, Any] | None = None,
    constants: Mapping[str, int | float] | None = None,
    feature_map: Mapping[str, str] | None = None,
    name: str | None = None,
    doc: str | None = None,
    **unknown: Never,
) -> Callable[[F], F]:
    """Decorate a function whose parameters are the inputs, body `update`, and return `output`.

    Dims are texts such as `"K"`, `"V K"`, `"3*D + 1"`, `"scalar"`, or lists of these. The function
    comes back unchanged and carries its Rule; `fwgen.load_rule` and `fwgen.compile` take it.
    Raises RuleError for a faulty rule, placed in the Python file, ArgumentError for sections that
    are missing, unknown, no dict or not given by keyword.
    """
    given = {
        "constants": constants,
        "inputs": inputs,
        "params": params,
        "buffers": buffers,
        "state": state,
        "feature_map": feature_map,
    }
    _check_usage(misplaced, [s for s, value in given.items() if value is not None], unknown)
    sections = {section: by_name(section, v, EXAMPLES[section]) for section, v in given.items()}
    for key, text in (("name", name), ("doc", doc)):
        if text is not None and not isinstance(text, str):
            raise ArgumentError(f"{key}: expected a text, found {text!r}")

    def decorate(function: F) -> F:
        if not inspect.isfunction(function):
            raise CallError(f"`fwgen.rule` decorates a function, not {function!r}")
        function.__fwgen_rule__ = _made(function, name, doc, sections)  # type: ignore[attr-defined]
        return function

    return decorate


def _made(
    function: Callable[..., Any], name: str | None, doc: str | None, sections: Sections
) -> Rule:
    """The rule of a function; name and documentation are the function's where None."""
    source = _Source.of(function)
    title = function.__name__ if name is None else name
    words = (inspect.getdoc(function) or "") if doc is None else doc
    document = source.document(title, words, sections)
    return from_document(document, source.file, Report(), {}, {})


def _check_usage(misplaced: tuple[object, ...], given: list[str], unknown: dict[str, Any]) -> None:
    """Raise a CallError, with a way out, for arguments that are not the sections of a rule."""
    if misplaced:
        raise CallError(f"`fwgen.rule` takes its sections by keyword: {USAGE}")
    for section in unknown:
        hint = did_you_mean(section, (*EXAMPLES, "name", "doc")) or USAGE
        if section in ("update", "output"):
            hint = "the body of the function is the update, what it returns the output"
        raise CallError(f"`fwgen.rule` has no section `{section}`; {hint}")
    for section in ("inputs", "state"):
        if section not in given:
            raise CallError(f"`fwgen.rule` lacks `{section}`: {USAGE}")


@dataclass(frozen=True, slots=True)
class _Source:
    """A function's syntax and where it stands in its file."""

    file: SourceFile
    node: ast.FunctionDef
    first: int
    """Lines of the file before the function's source."""
    indent: int

    @staticmethod
    def of(function: Callable[..., Any]) -> _Source:
        """Find the source; raises RuleError where there is none."""
        label = f"<function {getattr(function, '__name__', '?')}>"
        try:
            path = inspect.getsourcefile(function) or ""
            lines, first = inspect.getsourcelines(function)
            content = Path(path).read_text(encoding="utf-8")
        except (OSError, TypeError, UnicodeDecodeError):
            place = Span(SourceFile(label, ()))
            message = "the source of the function cannot be read"
            raise fail(place, message, "write it in a file") from None
        file = SourceFile.of(_shown(path), content.replace("\r\n", "\n"))
        text = "".join(lines)
        for number, line in enumerate(lines):
            if "\t" in line:
                raise fail(Span(file, first + number, line.index("\t") + 1), "a tab is not allowed")
        indent = len(lines[0]) - len(lines[0].lstrip())
        try:
            node: ast.stmt | None = ast.parse(textwrap.dedent(text)).body[0]
        except SyntaxError:  # part of a larger expression, as a lambda is
            node = None
        if not isinstance(node, ast.FunctionDef):
            raise fail(Span(file, first), "a rule is an ordinary function, written with `def`")
        return _Source(file, node, first - 1, indent)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """1-based line and column of a node in the file."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return line + self.first, column + self.indent + 1

    def document(self, name: str, doc: str, sections: Sections) -> yaml_file.Mapping:
        """The rule as the YAML loader would have read it."""
        place = Span(self.file, *self.span(self.node))
        update, output = self.body()
        taken = self.node.args
        others = (*taken.kwonlyargs, *filter(None, (taken.vararg, taken.kwarg)))
        names = [p.arg for p in (*taken.posonlyargs, *taken.args, *others)]
        if others or names != list(sections["inputs"]):
            listed = ", ".join(sections["inputs"])
            message = f"the parameters of `{name}` are not its inputs ({listed}), in order"
            raise fail(place, message)
        if taken.defaults:
            last = [*taken.posonlyargs, *taken.args][-1].arg
            raise fail(place, f"the parameter `{last}` has a default, which no input can have")
        literals = self.literals()
        entries: list[tuple[Text, Node]] = [
            (self.text("name"), self.text(name)),
            (self.text("doc"), self.text(doc)),
        ]
        for section, values in sections.items():
            pairs = []
            for key, value in values.items():
                at = literals.get((section, key, "key"), self.span(self.node))
                inside = literals.get((section, key, "value"), at)
                word = Text.plain(self.file, str(key), *at)
                pairs.append((word, self.value(section, value, inside)))
            entries.append((self.text(section), yaml_file.Mapping(tuple(pairs), place)))
        entries += [(self.text("update"), update), (self.text("output"), output)]
        return yaml_file.Mapping(tuple(entries), place)

    def text(self, value: str) -> Text:
        """A text whose place is the function's head."""
        line, column = self.span(self.node)
        return Text(self.file, value, tuple((line, column) for _ in value.split("\n")))

    def literals(self) -> dict[tuple[str, str, str], tuple[int, int]]:
        """Places of the keys and values that the decorator writes out."""
        found = {}
        calls = [d for d in self.node.decorator_list if isinstance(d, ast.Call)]
        for keyword in (k for call in calls for k in call.keywords):
            if not isinstance(keyword.value, ast.Dict):
                continue
            for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    section = (keyword.arg or "", key.value)
                    found[*section, "key"] = _inside(self.span(key), key)
                    found[*section, "value"] = _inside(self.span(value), value)
        return found

    def value(self, section: str, value: Any, at: tuple[int, int]) -> Node:
        """A declaration as a node."""
        if section == "feature_map":
            return _block(self.file, str(value), at)
        if section == "constants":
            number = plain_number(value)
            return Text.plain(self.file, repr(value if number is None else number), *at)
        if isinstance(value, Mapping):
            entries = []
            for key, part in value.items():
                whole = self.value(section, part, at) if key == "dims" else None
                plain = Text.plain(self.file, str(part), *at)
                entries.append((Text.plain(self.file, str(key), *at), whole or plain))
            return yaml_file.Mapping(tuple(entries), Span(self.file, *at))
        return self.dims(value, at)

    def dims(self, value: Any, at: tuple[int, int]) -> Node:
        """`"V K"` or a list of dims."""
        if isinstance(value, str):
            found = _dims(value)
        else:
            listed = value if isinstance(value, list | tuple) else [value]
            found = [(str(text), 0) for text in listed]
        line, column = at
        parts = tuple(Text.plain(self.file, text, line, column + n) for text, n in found)
        return parts[0] if len(parts) == 1 else Sequence(parts, Span(self.file, *at))

    def body(self) -> tuple[Text, Text]:
        """The texts of `update` and `output`."""
        lines = list(self.node.body)
        first = lines[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            lines = lines[1:]
        if not lines or not isinstance(lines[-1], ast.Return) or lines[-1].value is None:
            wrong = lines[-1] if lines else self.node
            place = Span(self.file, *self.span(wrong))
            raise fail(place, "a rule ends with `return` and its output")
        *rest, last = lines
        if not rest:
            raise fail(Span(self.file, *self.span(last)), "the rule has no update before `return`")
        start = (rest[0].lineno, rest[0].col_offset)
        update = self.cut(*start, rest[-1].end_lineno or 0, rest[-1].end_col_offset or 0)
        output = self.cut(
            last.lineno,
            last.col_offset + len("return "),
            last.end_lineno or 0,
            last.end_col_offset or 0,
        )
        return update, output

    def cut(self, line: int, column: int, last: int, end: int) -> Text:
        """The source from a place to a place, without the indentation of its first line."""
        indent = column + self.indent
        parts, places = [], []
        for number in range(line, last + 1):
            raw = self.file.lines[number + self.first - 1]
            stop = len(raw.encode()) if number < last else end + self.indent
            raw = raw.encode()[:stop].decode(errors="ignore")
            skip = indent if number == line else min(indent, len(raw) - len(raw.lstrip()))
            parts.append(raw[skip:].rstrip())
            places.append((number + self.first, skip + 1))
        return Text(self.file, "\n".join(parts), tuple(places))


def _shown(path: str) -> str:
    """A path as messages show it: from the working directory where it lies inside."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _inside(place: tuple[int, int], node: ast.AST) -> tuple[int, int]:
    """The place after the quote of a text."""
    quoted = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return (place[0], place[1] + 1) if quoted else place


def _block(file: SourceFile, text: str, at: tuple[int, int]) -> Text:
    """A formula in a Python string, which may have several indented lines."""
    lines = text.split("\n")
    if len(lines) == 1:
        return Text.plain(file, text.strip(), *at)
    blank = 0
    while blank < len(lines) - 1 and not lines[blank].strip():
        blank += 1
    value = textwrap.dedent("\n".join(lines[blank:])).rstrip()
    places = []
    for number, (line, raw) in enumerate(zip(value.split("\n"), lines[blank:], strict=False)):
        places.append((at[0] + blank + number, len(raw.rstrip()) - len(line.rstrip()) + 1))
    return Text(file, value, tuple(places))


def _dims(text: str) -> list[tuple[str, int]]:
    """Sizes and where they begin: `"V K"` is two sizes, `"3*D + 1"` is one."""
    if re.search(r"[*+-]", text) and "," not in text:
        try:
            parse_dim(text, {})
        except DimError:
            pass
        else:
            return [(text, 0)]
    found = [(match[0], match.start()) for match in re.finditer(r"[^\s,]+", text)]
    return found or [("scalar", 0)]
