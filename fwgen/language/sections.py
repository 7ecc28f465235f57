"""Sections of the file -> declarations. Every fault is reported, and what it leaves is usable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fwgen.ir.dims import Dim
from fwgen.language import yaml_file
from fwgen.language.declarations import Declarations, MapText, Tensor, parse_number
from fwgen.language.dims import DimError, hint_of, parse_dim, unbound
from fwgen.language.functions import FUNCTIONS
from fwgen.language.names import RULE_NAME, did_you_mean, fault_of, nearest
from fwgen.language.replaced import no_constants, replace_constants, replace_maps
from fwgen.language.source import Report, SourceFile, Span, Text
from fwgen.language.yaml_file import Node, Sequence, span_of

SECTIONS = (
    "name",
    "doc",
    "constants",
    "inputs",
    "params",
    "buffers",
    "state",
    "feature_map",
    "update",
    "output",
)
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character; an escape can name it
REQUIRED = ("name", "inputs", "state", "update", "output")


class _Reader:
    """Reads one document, reporting as it goes."""

    def __init__(self, document: yaml_file.Mapping, file: SourceFile, report: Report) -> None:
        self.document = document
        self.report = report
        self.found = Declarations(file, incomplete=bool(report.errors))

    def entries(self, section: str) -> Iterator[tuple[Text, Node]]:
        """Keys and values of a section that is a mapping; an absent or empty one has none."""
        node = self.document.get(section)
        if node is None or (isinstance(node, Text) and not node.value.strip()):
            return
        if not isinstance(node, yaml_file.Mapping):
            self.report.error(span_of(node), f"the section `{section}` is a mapping of names")
            self.found.incomplete = True
            return
        yield from node.entries

    def text(self, section: str) -> Text | None:
        """The text of a section that is one scalar."""
        node = self.document.get(section)
        if node is not None and not isinstance(node, Text):
            hint = yaml_file.FORMULA_HINT
            self.report.error(span_of(node), f"the section `{section}` is a text", hint)
            return None
        if node is not None and (bad := SURROGATE.search(node.value)):
            message = f"the character U+{ord(bad[0]):04X} alone is no text"
            self.report.error(node.span(), message)
            return None
        return node

    def claim(self, key: Text) -> bool:
        """Whether a key is a good new name; reports where not."""
        name = key.value
        fault = fault_of(name, FUNCTIONS)
        if name in self.found.spans:
            line = self.found.spans[name].line
            fault = f"`{name}` is declared twice; first on line {line}"
        elif fault is None:
            self.found.spans[name] = key.span()
        else:
            self.found.incomplete = True
        if fault:
            self.report.error(key.span(), fault)
            self.found.faulty.add(name)
        return fault is None

    def sections(self) -> None:
        for key, node in self.document.entries:
            if key.value not in SECTIONS:
                hint = did_you_mean(key.value, SECTIONS)
                self.report.error(key.span(), f"there is no section `{key.value}`", hint)
            empty = isinstance(node, Text) and not node.value.strip()
            if empty and key.value == "name":
                self.report.error(key.span(), "the rule has no name")
        present = {key.value for key, _ in self.document.entries}
        first = Span(self.found.file, 1, 1, 1)
        missing = [section for section in REQUIRED if section not in present]
        self.found.incomplete |= not {"inputs", "state"}.isdisjoint(missing)
        meant = {nearest(name, SECTIONS) for name in present.difference(SECTIONS)}
        if lacking := [section for section in missing if section not in meant]:
            wanted = ", ".join(f"`{section}`" for section in lacking)
            self.report.error(first, f"the rule lacks {wanted}")

    def name(self) -> None:
        node = self.text("name")
        if node is None:
            return
        self.found.name = node.value
        if node.value.strip() and not RULE_NAME.fullmatch(node.value):
            hint = "small letters, digits and `_`, at most 64, a letter first"
            if RULE_NAME.fullmatch(node.value.lower()):
                hint += f", such as `{node.value.lower()}`"
            self.report.error(node.span(), f"`{node.value}` cannot be the name of a rule", hint)

    def constants(self) -> None:
        for key, node in self.entries("constants"):
            good = self.claim(key)
            value = parse_number(node.value) if isinstance(node, Text) else None
            if value is None:
                shown = node.value if isinstance(node, Text) else "a collection"
                self.report.error(span_of(node), f"`{shown}` is not a finite number")
                self.found.faulty.add(key.value)
            elif good:
                self.found.constants[key.value] = value

    def tensors(self, section: str, kind: str) -> None:
        before: Text | None = None
        for key, node in self.entries(section):
            good = self.claim(key)
            init: float | None = 0.0
            beside = before is not None and before.span().line == key.span().line
            if before is not None and beside and isinstance(node, Text) and not node.value:
                self.unlisted(before, key)
                continue
            before = key
            if kind == "state" and isinstance(node, yaml_file.Mapping):
                init, dims = self.state(node)
            else:
                dims = self.dims(node)
            if dims is None:
                self.found.faulty.add(key.value)
            elif good:
                spans = tuple(span_of(part) for part in _dim_nodes(node))
                tensor = Tensor(key.value, kind, dims, key.span(), init, spans)
                self.found.tensors[key.value] = tensor

    def unlisted(self, key: Text, size: Text) -> None:
        """`{W: V, K}` in a flow mapping: the second size is a key of its own."""
        known = self.found.tensors.pop(key.value, None)
        sizes = [*(map(str, known.dims) if known else "…"), size.value]
        hint = f"a list of sizes is `{key.value}: [{', '.join(sizes)}]`"
        self.report.error(
            size.span(), f"`{size.value}` has no size, or is one of `{key.value}`", hint
        )
        self.found.faulty |= {key.value, size.value}

    def state(self, node: yaml_file.Mapping) -> tuple[float | None, tuple[Dim, ...] | None]:
        """`{dims: [V, F], init: 0 | a number | param}`."""
        init: float | None = 0.0
        dims: tuple[Dim, ...] | None = None
        for key, value in node.entries:
            if key.value == "dims":
                dims = self.dims(value)
            elif key.value == "init":
                text = value.value if isinstance(value, Text) else "a collection"
                number = parse_number(text)
                init = None if text == "param" else float(number or 0)
                if text != "param" and number is None:
                    message = f"`{text}` is no start value: write a number or `param`"
                    self.report.error(span_of(value), message)
            else:
                hint = did_you_mean(key.value, ("dims", "init"))
                self.report.error(key.span(), f"a state has no `{key.value}`", hint)
        if node.get("dims") is None:
            self.report.error(node.span, "the state lacks its `dims`")
        return init, dims

    def dims(self, node: Node) -> tuple[Dim, ...] | None:
        """One size, a list of sizes, or `scalar`."""
        if isinstance(node, yaml_file.Mapping):
            self.report.error(node.span, "dims are a name, a list or `scalar`")
            return None
        if isinstance(node, Text) and node.value == "scalar":
            return ()
        found: list[Dim] = []
        for item in node.items if isinstance(node, Sequence) else (node,):
            if not isinstance(item, Text):
                self.report.error(span_of(item), "a size is one word or a polynomial")
                return None
            if item.value == "scalar":
                self.report.error(item.span(), "`scalar` is no size: it stands alone, in no list")
                return None
            try:
                found.append(parse_dim(item.value, self.found.constants))
            except DimError as fault:
                if not (self.found.faulty & set(re.findall(r"\w+", item.value))):
                    self.report.error(item.span(), str(fault), hint_of(item.value))
                return None
        return tuple(found)

    def maps(self) -> None:
        for key, node in self.entries("feature_map"):
            match = re.fullmatch(r"([^\s(]+)\s*(?:\(([^()]*)\))?", key.value.strip())
            if match is None or not isinstance(node, Text):
                wrong = key.span() if match is None else span_of(node)
                self.report.error(wrong, "a feature map is `name(x): formula`")
                self.found.incomplete = True
                continue
            name, listed = match[1], match[2]
            word = Text(key.file, name, key.places)
            names = ("x",) if listed is None else tuple(p.strip() for p in listed.split(","))
            if not all(names):
                self.report.error(key.span(), f"the feature map `{name}` lacks an argument")
                self.found.incomplete = True
                continue
            fresh = self.claim(word)
            good = fresh and self.parameters(key, names)
            if not good:
                self.found.faulty.add(name)
                self.found.incomplete |= not fresh
            if good or name not in self.found.maps:
                parsed = MapText(name, names, listed is None, node, word.span())
                self.found.maps[name] = parsed

    def parameters(self, key: Text, names: tuple[str, ...]) -> bool:
        """Whether the arguments of a map are good names that hide nothing it sees."""
        for position, name in enumerate(names):
            fault = fault_of(name, FUNCTIONS)
            seen = self.found.tensors.get(name)
            if name in self.found.constants or (seen and seen.kind in ("param", "buffer")):
                fault = f"the argument `{name}` hides what the map sees under this name"
            elif name in names[:position]:
                fault = f"the argument `{name}` occurs twice"
            if fault:
                self.report.error(key.span(), fault)
                return False
        return True


def _dim_nodes(node: Node) -> tuple[Node, ...]:
    """The parts of a declaration that name sizes."""
    if isinstance(node, yaml_file.Mapping):
        node = node.get("dims") or node
    return node.items if isinstance(node, Sequence) else (node,)


def declarations(
    document: yaml_file.Mapping,
    file: SourceFile,
    report: Report,
    constants: Mapping[str, int | float],
    maps: Mapping[str, str],
) -> Declarations:
    """Read every section of a document; `constants` and `maps` replace what the file says."""
    reader = _Reader(document, file, report)
    found = reader.found
    reader.sections()
    reader.name()
    doc = reader.text("doc")
    found.doc = doc.value if doc is not None else ""
    reader.constants()
    strange = replace_constants(found, constants)
    order = [key.value for key, _ in document.entries]
    kinds = {"inputs": "input", "params": "param", "buffers": "buffer", "state": "state"}
    for section in sorted(kinds, key=lambda s: order.index(s) if s in order else len(order)):
        reader.tensors(section, kinds[section])
    reader.maps()
    no_constants(found, strange, report)
    replace_maps(found, maps, report)
    found.update, found.output = reader.text("update"), reader.text("output")
    for section, kind in (("inputs", "input"), ("state", "state")):
        node = document.get(section)
        if node is not None and not found.of(kind) and not found.faulty and not found.incomplete:
            report.error(span_of(node), f"a rule has at least one {kind}")
    _bindable(found, report)
    return found


def _bindable(found: Declarations, report: Report) -> None:
    """Report sizes that no tensor of a call tells."""
    loose = unbound(dim for tensor in found.tensors.values() for dim in tensor.dims)
    for tensor in found.tensors.values():
        for dim, span in zip(tensor.dims, tensor.dim_spans, strict=False):
            for name in sorted(dim.names & loose):
                message = f"`{name}` cannot be found from `{dim}`: sizes are bound where linear"
                report.error(span, message, f"declare a tensor with the size `{name}` alone")
                found.faulty.add(tensor.name)
                loose.discard(name)
