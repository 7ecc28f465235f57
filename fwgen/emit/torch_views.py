"""Prints element accesses of Step IR as PyTorch views whose axes line up for broadcasting."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fwgen.ir.dims import ONE, ZERO, Dim
from fwgen.ir.nodes import Index, Load, Step, Var

COMPARE, OR, AND, ADD, MUL, UNARY, POW, ATOM = range(8)
"""How tightly Python's operators bind."""

TAKEN = {
    "torch", "functional", "math", "Tensor", "Any", "lead", "step", "reference", *keyword.kwlist,
}  # fmt: skip
"""Names that the text has a use for."""


@dataclass(frozen=True, slots=True)
class Text:
    """A printed expression; `number`: a Python number, `integer`: its values are integers."""

    text: str
    level: int = ATOM
    number: bool = False
    integer: bool = False

    def at(self, level: int) -> str:
        """The text, in parentheses where the place binds tighter."""
        return self.text if self.level >= level else f"({self.text})"


def size_name(dim: str) -> str:
    """The Python name of a dim's size: the dim's, unless the module has another use for it."""
    return f"{dim}_" if dim in TAKEN else dim


@dataclass
class Views:
    """What printing one step needs to know, and what its text turns out to need.

    `names` maps arrays to Python names; `like` is the Python name of a tensor that has the dtype
    and device of the computation. `sizes`, `needs` and `printed` collect the named dims, the
    helpers and the lines that were printed.
    """

    step: Step
    names: Mapping[str, str]
    like: str
    sizes: dict[str, None] = field(default_factory=dict)
    needs: set[str] = field(default_factory=set)
    printed: list[str] = field(default_factory=list)

    def dim(self, dim: Dim) -> str:
        """A size as a Python expression."""
        self.sizes.update(dict.fromkeys(sorted(dim.names)))
        return str(dim.substitute({name: Dim.of(size_name(name)) for name in dim.names}))

    def index_value(self, index: Index, axes: Sequence[Var]) -> Text:
        """The value of an index expression for all values of its variables."""
        parts = []
        for coefficient, var in index.terms:
            text = f"torch.arange({self.dim(var.dim)}, device={self.like}.device)"
            if var != axes[-1]:
                text += nones([a == var for a in axes[axes.index(var) :]]).replace("..., ", "")
            parts.append(
                text if coefficient == ONE else f"{factored(self.dim(coefficient))} * {text}"
            )
        if index.offset != ZERO or not parts:
            parts.append(self.dim(index.offset))
        text, level = " + ".join(parts), ADD if len(parts) > 1 else MUL
        if index.modulo is not None:
            text, level = f"({text}) % {factored(self.dim(index.modulo))}", MUL
        return Text(text, level, number=not index.terms, integer=True)

    def load_text(self, load: Load, axes: Sequence[Var]) -> str:
        """Element access as a view whose trailing axes broadcast over `axes`."""
        text, found = self._view(load)
        order = [var for var in axes if var in found]
        if order != found:
            places = [found.index(var) for var in order]
            if len(places) == 2:
                text += ".mT"
            else:
                text += f".permute({', '.join(str(p) for p in (0, 1, *(p + 2 for p in places)))})"
        present = [var in order for var in axes]
        return text + ("" if all(present) else nones(present))

    def _view(self, load: Load) -> tuple[str, list[Var]]:
        """Slices, fixed positions, rolls and gathers of an array; its axes afterwards."""
        text = self.names[load.array]
        dims = self.step.array(load.array).dims
        kept = [(index, dim) for index, dim in zip(load.index, dims, strict=True) if index.terms]
        slots = [self._slot(i, d) for i, d in zip(load.index, dims, strict=True)]
        if any(slot != ":" for slot in slots):
            text += f"[..., {', '.join(slots)}]"
        found: list[Var] = []
        for place, (index, dim) in enumerate(kept):
            after = place - len(kept)
            text = self._rearranged(text, index, dim, after)
            found += [var for _, var in index.terms]
        while len(set(found)) < len(found):
            var = next(v for v in found if found.count(v) > 1)
            a = found.index(var)
            b = found.index(var, a + 1)
            n = len(found)
            text += f".diagonal(dim1={a - n}, dim2={b - n})"
            found = [v for i, v in enumerate(found) if i not in (a, b)] + [var]
        return text, found

    def _slot(self, index: Index, dim: Dim) -> str:
        if not index.terms:
            if index.modulo is not None:
                return f"({self.dim(index.offset)}) % {factored(self.dim(index.modulo))}"
            return self.dim(index.offset)
        if not _is_slice(index) or (index.offset == ZERO and index.terms[0][1].dim == dim):
            return ":"
        end = index.offset + index.terms[0][1].dim
        start = "" if index.offset == ZERO else factored(self.dim(index.offset))
        return f"{start}:{'' if end == dim else factored(self.dim(end))}"

    def _rearranged(self, text: str, index: Index, dim: Dim, after: int) -> str:
        """One axis: nothing for a slice, else `roll`, `unflatten` or a gather by positions."""
        if _is_slice(index):
            return text
        if (
            len(index.terms) == 1
            and index.modulo == dim == index.terms[0][1].dim
            and (index.terms[0][0] == ONE)
        ):
            return f"torch.roll({text}, {self.dim(-index.offset)}, {after})"
        if len(index.terms) == 2 and index.modulo is None and index.offset == ZERO:
            (stride, outer), (one, inner) = index.terms
            if one == ONE and stride == inner.dim and outer.dim * inner.dim == dim:
                return f"{text}.unflatten({after}, ({self.dim(outer.dim)}, {self.dim(inner.dim)}))"
        axes = [var for _, var in index.terms]
        places = self.index_value(index, axes).text
        return f"{text}[..., {', '.join([places] + [':'] * (-after - 1))}]"


def factored(text: str) -> str:
    """In parentheses unless it is one word."""
    return f"({text})" if " " in text else text


def nones(present: Sequence[bool]) -> str:
    """A subscript that keeps the axes that are present and adds one of size 1 for the others."""
    return f"[..., {', '.join(':' if here else 'None' for here in present)}]"


def size_level(dim: Dim) -> int:
    """How tightly the text of a size binds."""
    if len(dim.terms) > 1:
        return ADD
    (names, factor) = dim.terms[0] if dim.terms else ((), 0)
    return ATOM if len(names) + (factor != 1) <= 1 and factor >= 0 else MUL


def _is_slice(index: Index) -> bool:
    return index.modulo is None and len(index.terms) == 1 and index.terms[0][0] == ONE
