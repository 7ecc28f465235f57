"""Declarations -> YAML text in one canonical layout."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from fwgen.language.declarations import Declarations, MapText, Tensor

PLAIN = re.compile(r"[A-Za-z_][\w ()@*+/.,;=<>!-]*", re.ASCII)
RESOLVED = re.compile(r"(?i)(y|n|yes|no|on|off|true|false|null|nan|inf)")
SECTIONS = (("inputs", "input"), ("params", "param"), ("buffers", "buffer"))


def scalar(text: str) -> str:
    """A text on one line: plain where every YAML reader takes it for this text, else quoted."""
    if PLAIN.fullmatch(text) and not RESOLVED.fullmatch(text) and not text.endswith(" "):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else _escape(c) for c in quoted)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def formula(key: str, text: str, indent: str) -> list[str]:
    """A formula under its key: on the same line where that is safe, else as a block."""
    lines = [line.rstrip() for line in text.strip("\n").rstrip().split("\n")]
    if len(lines) == 1 and PLAIN.fullmatch(lines[0]):
        return [f"{indent}{key}: {lines[0]}"]
    return [f"{indent}{key}: |", *(f"{indent}  {line}" if line else "" for line in lines)]


def dims(tensor: Tensor, texts: Iterable[str]) -> str:
    """`scalar`, one size, or a list."""
    parts = list(texts)
    if not tensor.dims:
        return "scalar"
    return parts[0] if len(parts) == 1 else f"[{', '.join(parts)}]"


def _state(tensor: Tensor) -> str:
    shown = dims(tensor, map(str, tensor.dims))
    if tensor.init == 0:
        return shown
    init = "param" if tensor.init is None else repr(tensor.init)
    return f"{{dims: {shown}, init: {init}}}"


def _map(text: MapText) -> list[str]:
    head = f"{text.name}({', '.join(text.parameters)})"
    if text.short and text.parameters == ("x",):
        head = text.name
    return formula(head, text.text.value, "  ")


def rule_text(found: Declarations) -> str:
    """The whole rule as YAML; loading it gives the same text again."""
    lines = [f"name: {scalar(found.name)}"]
    if found.doc:
        lines.append(f"doc: {scalar(found.doc)}")
    if found.constants:
        lines.append("constants:")
        lines += [f"  {scalar(name)}: {value!r}" for name, value in found.constants.items()]
    for section, kind in SECTIONS:
        if tensors := found.of(kind):
            lines.append(f"{section}:")
            for tensor in tensors:
                lines.append(f"  {scalar(tensor.name)}: {dims(tensor, map(str, tensor.dims))}")
    lines.append("state:")
    lines += [f"  {scalar(tensor.name)}: {_state(tensor)}" for tensor in found.of("state")]
    if found.maps:
        lines.append("feature_map:")
        for text in found.maps.values():
            lines += _map(text)
    assert found.update is not None and found.output is not None
    lines += formula("update", found.update.value, "")
    lines += formula("output", found.output.value, "")
    return "\n".join(lines) + "\n"
