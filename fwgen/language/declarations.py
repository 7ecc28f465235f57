"""What the sections of a rule declare: names, dims, constants, start values, formulas."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from fwgen.ir.dims import Dim
from fwgen.language.source import SourceFile, Span, Text

NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A declared input, param, buffer or state. `init` is None for a learned start value."""

    name: str
    kind: str
    dims: tuple[Dim, ...]
    span: Span
    init: float | None = 0.0
    dim_spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class MapText:
    """A feature map as declared; a short one has no parameter list and may leave `x` out."""

    name: str
    parameters: tuple[str, ...]
    short: bool
    text: Text
    span: Span


@dataclass(slots=True)
class Declarations:
    """What the sections say. A section that could not be read is empty and listed in `broken`."""

    file: SourceFile
    name: str = ""
    doc: str = ""
    constants: dict[str, int | float] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    maps: dict[str, MapText] = field(default_factory=dict)
    update: Text | None = None
    output: Text | None = None
    spans: dict[str, Span] = field(default_factory=dict)
    """Where each name was declared."""
    faulty: set[str] = field(default_factory=set)
    """Names whose declaration was reported."""
    incomplete: bool = False
    """Whether some declared name could not be read at all, so that an unknown name may be it."""

    def of(self, kind: str) -> list[Tensor]:
        """Declared tensors of a kind, in order."""
        return [tensor for tensor in self.tensors.values() if tensor.kind == kind]


def parse_number(text: str) -> int | float | None:
    """A finite number, or None."""
    if not NUMBER.fullmatch(text) or len(text) > 320:
        return None
    value = float(text)
    if not math.isfinite(value) or abs(value) > 1e308:
        return None
    return int(text) if re.fullmatch(r"[-+]?\d+", text) and abs(value) < 2**53 else value
