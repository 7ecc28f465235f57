"""Where the arrays of a sweep live, and how an element or a vector of lanes of one is reached.

* A *row* array (narrow values, and inputs of any rank) has one padded row per token of the chunk;
  a scalar is one number per token. A carried row array has its old value in the slot before the new
  one.
* A *head* array (params, buffers, their gradients) exists once.
* A *value* lives in the registers of one loop over lanes.
* A *matrix* lives in its scan, once, or once per token where the scan keeps a history.

Matrices and head arrays of two axes are laned: vector b of row j is at (b * column + j) * L, the
lanes running along the first axis (the last with `key_lanes`). Everything else is row-major with
the last axis padded to whole vectors. A column is a few vectors longer than the rows, since
columns that lie multiples of 4 KB apart would disturb each other's loads and stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fwgen.emit.cpu.names import Names, dim_text, index_text, wrapped
from fwgen.ir.dims import ONE, Dim
from fwgen.ir.nodes import Array, Index, Load, Var

Kind = Literal["row", "head", "matrix", "value"]


@dataclass(frozen=True, slots=True)
class Place:
    """How one array is stored: `base` is its pointer, `shift` what is added to the token's slot.

    `rows` names the `fw::Rows` that say where a chunk's rows are, for those that may lie in a
    tensor of the call.
    """

    array: Array
    base: str
    kind: Kind
    laned: bool
    lane_axis: int = 0
    shift: int = 0
    history: bool = False
    rows: str = ""


@dataclass(frozen=True, slots=True)
class Storage:
    """The places of all arrays of a sweep.

    `extents` collects the constants for the sizes of rows and matrices.
    """

    places: Mapping[str, Place]
    names: Names
    extents: dict[str, str]

    def dim(self, dim: Dim) -> str:
        """A size as C++."""
        return dim_text(dim, self.names)

    def padded(self, dim: Dim) -> str:
        """A size rounded up to whole vectors."""
        return f"fw::padded({self.dim(dim)})"

    def extent(self, place: Place) -> str:
        """Reals of one row, one matrix or one head array: the name of a constant."""
        dims = place.array.dims
        if not dims:
            return "1"
        if place.laned:
            lane, row = dims[place.lane_axis], dims[1 - place.lane_axis]
            return self._named(f"{self.padded(lane)} * fw::column({self.dim(row)})")
        outer = [wrapped(self.dim(dim)) for dim in dims[:-1]]
        return self._named(" * ".join([*outer, self.padded(dims[-1])]))

    def _named(self, value: str) -> str:
        plain = value.replace("fw::padded(n_", "").replace("fw::column(n_", "").replace("n_", "")
        wish = "row_" + "".join(c if c.isalnum() else "_" for c in plain.replace(" ", ""))
        name = self.names.of(("extent", value), wish.rstrip("_"))
        self.extents[name] = value
        return name

    def slot(self, place: Place, token: str) -> str:
        """The pointer to the array's data of one token, as a sum."""
        if place.kind == "head" or (place.kind == "matrix" and not place.history):
            return place.base
        count = _shifted(token, place.shift)
        if place.rows:
            return f"{place.rows}.data + {count} * {place.rows}.step"
        extent = self.extent(place)
        if extent == "1":
            return f"{place.base} + {count}"
        return (
            place.base if token == "0" and not place.shift else f"{place.base} + {count} * {extent}"
        )

    def contiguous(self, load: Load, lane: Var) -> bool:
        """Whether successive values of `lane` are successive in memory, and it occurs."""
        place = self.places[load.array]
        if not load.index:
            return False
        axis = place.lane_axis if place.laned else len(load.index) - 1
        inner = load.index[axis]
        others = [index for n, index in enumerate(load.index) if n != axis]
        if any(var == lane for index in others for _, var in index.terms):
            return False
        own = [coefficient for coefficient, var in inner.terms if var == lane]
        if place.laned:
            return inner.variable == lane
        return own == [ONE] and inner.modulo is None

    def uses(self, load: Load, lane: Var) -> bool:
        """Whether a variable occurs in an access."""
        return any(var == lane for index in load.index for _, var in index.terms)

    def vector(self, load: Load, lane: Var, values: Mapping[Var, str], token: str) -> str:
        """Pointer to the vector of a contiguous access; `values[lane]` is its first element."""
        place = self.places[load.array]
        base = self.slot(place, token)
        if not place.laned:
            return f"{base} + {self._flat(place, load.index, values)}"
        rows = self.dim(place.array.dims[1 - place.lane_axis])
        row = index_text(load.index[1 - place.lane_axis], dict(values), self.names)
        first = values[lane]
        return f"{base} + {wrapped(first)} * fw::column({rows}) + {wrapped(row)} * fw::L"

    def element(self, load: Load, values: Mapping[Var, str], token: str) -> str:
        """One element of an array, as an lvalue."""
        place = self.places[load.array]
        base = self.slot(place, token)
        pointer = place.base if base == place.base else f"({base})"
        if not load.index:
            return (
                f"{pointer}[0]"
                if base == place.base
                else f"{place.base}[{base[len(place.base) + 3 :]}]"
            )
        if not place.laned:
            return f"{pointer}[{self._flat(place, load.index, values)}]"
        texts = [index_text(index, dict(values), self.names) for index in load.index]
        rows = wrapped(self.dim(place.array.dims[1 - place.lane_axis]))
        lane, row = texts[place.lane_axis], texts[1 - place.lane_axis]
        return f"{pointer}[fw::laned({lane}, {row}, {rows})]"

    def _flat(self, place: Place, index: tuple[Index, ...], values: Mapping[Var, str]) -> str:
        dims = place.array.dims
        text = ""
        for axis, entry in enumerate(index):
            part = index_text(entry, dict(values), self.names)
            if not text or text == "0":
                text = part
                continue
            size = (
                self.padded(dims[axis]) if axis == len(dims) - 1 else wrapped(self.dim(dims[axis]))
            )
            text = f"{wrapped(text)} * {size} + {part}"
        return text


def _shifted(token: str, shift: int) -> str:
    """The slot of a token's row, as a factor."""
    if shift == -1 and token.endswith(" + 1"):
        return token.removesuffix(" + 1")
    return f"({token} {'+' if shift > 0 else '-'} {abs(shift)})" if shift else wrapped(token)
