"""Statements as loops: which variable is vectorised, and the texts that the template pastes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fwgen.emit.cpu.names import dim_text, index_text
from fwgen.emit.cpu.printer import ATOM, SUM, Surroundings, Text, as_real, scalar_text
from fwgen.emit.cpu.storage import Storage
from fwgen.ir.nodes import Index, IndexValue, Load, Position, Size, Statement, Var
from fwgen.ir.text import statement_text
from fwgen.ir.walk import loads, scalars, variables


@dataclass(frozen=True, slots=True)
class Loop:
    """A scalar loop `for (size name = 0; name < bound; ++name)`."""

    name: str
    bound: str


@dataclass(frozen=True, slots=True)
class View:
    """A statement for the template.

    `kind`: `map` (the lane is kept), `fold` (the lane is reduced), `scalar` (no lane), `tokens` (a
    scalar value, vectorised over the tokens of the chunk). `outer` loops lie around the reduction,
    `inner` loops inside it. `pointer` is the target's vector in `map` and `tokens`; `element` the
    target's element in the others. `exact` targets may not be written beyond `bound`. With `block`
    only the vectors of the current block are computed. `name`: the
    target is a value of that name.
    """

    kind: str
    equation: str
    outer: tuple[Loop, ...]
    inner: tuple[Loop, ...]
    bound: str
    block: bool
    value: str
    pointer: str
    element: str
    reduce: str
    accumulate: bool
    exact: bool
    name: str


def view(
    statement: Statement, storage: Storage, token: str, *, batch: bool, split: str | None = None
) -> View:
    """Choose how a statement runs at token `token`.

    `batch`: all tokens of the chunk are at hand. `split`: the dim of which only the vectors of the
    current block are computed.
    """
    lane = _lane(statement, storage)
    kind = "scalar"
    if lane is not None:
        kind = "map" if lane in statement.free else "fold"
    elif batch and _over_tokens(statement, storage):
        kind = "tokens"
    loop_names = {
        var: storage.names.of(("var", var.name), var.name.replace("'", "_"))
        for var in (*statement.free, *statement.over, *variables(statement.body))
    }
    values = dict(loop_names)
    if lane is not None:
        values[lane] = "e"
    around = _surroundings(storage, lane, values, token, kind == "tokens")
    value = as_real(scalar_text(statement.body, around))
    target = Load(statement.target, statement.index)
    place = storage.places[statement.target]
    parted = lane is not None and split == str(lane.dim) and lane in statement.free
    return View(
        kind=kind,
        equation=statement_text(statement),
        outer=tuple(_loop(v, loop_names, storage) for v in statement.free if v != lane),
        inner=tuple(_loop(v, loop_names, storage) for v in statement.over if v != lane),
        bound=dim_text(lane.dim, storage.names) if lane else "",
        block=parted,
        value=value.text,
        pointer=_pointer(target, lane, values, storage, token, kind),
        element=storage.element(target, values, token) if kind in ("fold", "scalar") else "",
        reduce=statement.reduce or "",
        accumulate=statement.accumulate,
        exact=kind == "map" and not _whole(target, lane, storage),
        name=place.base if place.kind == "value" else "",
    )


def _whole(target: Load, lane: Var | None, storage: Storage) -> bool:
    """Whether the lane runs over the whole of an axis, so that its padding may be written."""
    dims = storage.places[target.array].array.dims
    pairs = zip(target.index, dims, strict=True)
    return any(index.variable == lane and lane.dim == dim for index, dim in pairs if lane)


def _pointer(
    target: Load,
    lane: Var | None,
    values: Mapping[Var, str],
    storage: Storage,
    token: str,
    kind: str,
) -> str:
    if kind == "map" and lane is not None:
        return storage.vector(target, lane, values, token)
    if kind == "tokens":
        return storage.slot(storage.places[target.array], token)
    return ""


def _loop(var: Var, names: Mapping[Var, str], storage: Storage) -> Loop:
    return Loop(names[var], dim_text(var.dim, storage.names))


def _lane(statement: Statement, storage: Storage) -> Var | None:
    """The first variable, the target's last one first, along which every access is contiguous."""
    target = Load(statement.target, statement.index)
    candidates = [*reversed(statement.free), *reversed(statement.over)]
    preferred = [v for v in candidates if v in statement.free or len(statement.over) == 1]
    for var in dict.fromkeys((*preferred, *candidates)):
        if var in statement.free and not storage.contiguous(target, var):
            continue
        uses = [load for load in loads(statement.body) if storage.uses(load, var)]
        if all(storage.contiguous(load, var) for load in uses):
            return var
    return None


def _over_tokens(statement: Statement, storage: Storage) -> bool:
    """Whether a statement without variables can take one lane per token."""
    if statement.free or statement.over or statement.index or statement.accumulate:
        return False
    simple = not any(isinstance(n, Position | IndexValue) for n in scalars(statement.body))
    scalar = all(not load.index for load in loads(statement.body))
    places = [storage.places[load.array] for load in loads(statement.body)]
    target = storage.places[statement.target]
    return simple and scalar and target.kind == "row" and all(p.kind != "matrix" for p in places)


def _surroundings(
    storage: Storage,
    lane: Var | None,
    values: Mapping[Var, str],
    token: str,
    tokens: bool,
) -> Surroundings:
    def load(node: Load) -> Text:
        if storage.places[node.array].kind == "value":
            return Text(storage.places[node.array].base, ATOM, "vec")
        if tokens and storage.places[node.array].kind == "row":
            slot = storage.slot(storage.places[node.array], token)
            return Text(f"fw::load({slot})", ATOM, "vec")
        if lane is not None and storage.uses(node, lane):
            return Text(f"fw::load({storage.vector(node, lane, values, token)})", ATOM, "vec")
        return Text(storage.element(node, values, token), ATOM, "real")

    def index(node: Index) -> Text:
        factor = next((c for c, var in node.terms if var == lane), None)
        if factor is not None:
            first = index_text(node, dict(values), storage.names)
            step = dim_text(factor, storage.names)
            return Text(f"(real({step}) * fw::lanes() + real({first}))", ATOM, "vec")
        text = index_text(node, dict(values), storage.names)
        return Text(text, ATOM if text.isalnum() else SUM, "int")

    def size(node: Size) -> Text:
        text = dim_text(node.dim, storage.names)
        return Text(text, SUM if " " in text else ATOM, "int")

    return Surroundings(load, index, size, f"(position + {token})")
