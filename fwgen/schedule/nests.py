"""The body of a scan: matrix statements fused into nests, and how the nests may overlap."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fwgen.ir.carries import Carry
from fwgen.ir.nodes import Array, Const, Index, Load, Statement, Var
from fwgen.ir.walk import loads, reads, substitute, variables
from fwgen.schedule.plan import Item, Nest


def body(
    statements: Sequence[Statement],
    carries: Sequence[Carry],
    arrays: Mapping[str, Array],
    stored: Collection[str] = (),
    lane_axis: int = 0,
) -> tuple[tuple[Item, ...], bool, str | None]:
    """Fuse ordered statements; say whether the body is rotated, and which dim splits it.

    `stored` arrays have a row per token, whatever their rank, and take no part in nests.
    """
    carried = {name for c in carries for name in (c.before, c.after)}
    given = {a.name for a in arrays.values() if a.role in ("input", "seed")}
    rows = {*stored, *given} - carried
    items = _fuse(statements, arrays, {c.after: c.before for c in carries}, rows, lane_axis)
    items = _opened(items, arrays, rows)
    split = split_dim(items, carries, arrays)
    rotated = _rotates(items, carries)
    return items, rotated, split


def matrix_domain(statement: Statement, arrays: Mapping[str, Array]) -> tuple[Var, Var] | None:
    """(first-axis variable, last-axis variable) of a statement over one matrix domain, else None.

    All its matrix accesses, and a matrix target, are `M[i, j]` with the same plain `i` and `j` that
    run through the whole matrix, and it has no other variables.
    """
    target = arrays[statement.target]
    places = [load.index for load in loads(statement.body) if len(arrays[load.array].dims) == 2]
    if len(target.dims) == 2:
        places.append(statement.index)
    if not places or any(len(p) != 2 for p in places) or len(set(places)) != 1:
        return None
    first, last = (index.variable for index in places[0])
    if first is None or last is None or first == last:
        return None
    used = {*variables(statement.body), *statement.free, *statement.over}
    if used != {first, last} or statement.reduce in ("max", "min"):
        return None
    return (first, last) if _whole(statement, arrays) else None


def _whole(statement: Statement, arrays: Mapping[str, Array]) -> bool:
    """Whether every access runs through the whole of its array's axes.

    A nest finds elements by its own sizes, and takes what lies beyond them for zero.
    """
    accesses = [(statement.target, statement.index)]
    accesses += [(load.array, load.index) for load in loads(statement.body)]
    return all(
        entry.variable is not None and entry.variable.dim == dim
        for name, index in accesses
        for entry, dim in zip(index, arrays[name].dims, strict=True)
    )


def _streamed(statement: Statement, arrays: Mapping[str, Array], rows: Collection[str]) -> bool:
    """Whether a matrix of the statement has a row per token, and so another layout."""
    names = [statement.target, *reads(statement)]
    return any(name in rows and len(arrays[name].dims) > 1 for name in names)


def _per_head(statement: Statement, arrays: Mapping[str, Array]) -> bool:
    """Whether the statement touches a matrix that exists once per head: params, their gradients."""
    names = [statement.target, *reads(statement)]
    owners = [arrays.get(arrays[n].of, arrays[n]) for n in names if len(arrays[n].dims) > 1]
    return any(array.role in ("param", "buffer") for array in owners)


def _renamed(statement: Statement, first: Var, last: Var, row: Var, lane: Var) -> Statement:
    """The statement over the nest's own variables."""
    names = {first: Index.of(lane), last: Index.of(row)}
    swap = {first: lane, last: row}
    index = tuple(Index.of(swap[i.variable]) for i in statement.index if i.variable is not None)
    over = tuple(swap[var] for var in statement.over)
    return Statement(
        statement.target,
        index,
        substitute(statement.body, names),
        over,
        statement.reduce,
        statement.accumulate,
        statement.line,
    )


def _fuse(
    statements: Sequence[Statement],
    arrays: Mapping[str, Array],
    replaces: Mapping[str, str],
    rows: Collection[str],
    lane_axis: int,
) -> tuple[Item, ...]:
    """Group statements over one matrix domain; later ones join the earliest nest that they may.

    A statement may join a nest when nothing that it reads is reduced in that nest, or written by an
    item after it, and when it replaces a carried matrix, when no later item reads the old one.
    """
    items: list[Item] = []
    for statement in statements:
        domain = matrix_domain(statement, arrays)
        per_head = lane_axis == 1 and _per_head(statement, arrays)
        if domain is None or per_head or _streamed(statement, arrays, rows):
            items.append(statement)
            continue
        first, last = domain if lane_axis == 0 else reversed(domain)
        old = replaces.get(statement.target)
        home = _earliest(items, statement, (first.dim, last.dim), old)
        if home is None:
            lane, row = Var("i", first.dim), Var("j", last.dim)
            items.append(Nest(row, lane, (_renamed(statement, first, last, row, lane),)))
        else:
            nest = items[home]
            assert isinstance(nest, Nest)
            joined = _renamed(statement, first, last, nest.row, nest.lane)
            items[home] = Nest(nest.row, nest.lane, (*nest.statements, joined))
    return tuple(items)


def _opened(
    items: Sequence[Item], arrays: Mapping[str, Array], rows: Collection[str]
) -> tuple[Item, ...]:
    """Matrices start from zeros where the first that is added to them covers only a part."""
    seen: set[str] = set()
    done: list[Item] = []
    for item in items:
        inner = item.statements if isinstance(item, Nest) else (item,)
        for statement in inner:
            array = arrays[statement.target]
            inside = len(array.dims) > 1 and array.name not in rows and array.name not in seen
            if inside and statement.accumulate and leaves_part(statement, array):
                axes = tuple(Index.of(Var(f"z{n}", dim)) for n, dim in enumerate(array.dims))
                done.append(Statement(array.name, axes, Const(0.0)))
            seen.add(array.name)
        done.append(item)
    return tuple(done)


def leaves_part(statement: Statement, array: Array) -> bool:
    """Whether a statement leaves part of its target as it is."""
    plain = [index.variable for index in statement.index]
    if None in plain or len(set(plain)) != len(plain):
        return True
    return any(v is not None and v.dim != d for v, d in zip(plain, array.dims, strict=True))


def _earliest(
    items: Sequence[Item], statement: Statement, dims: tuple[object, object], old: str | None
) -> int | None:
    """The first nest of these dims that comes after everything the statement waits for."""
    sources = set(reads(statement))
    home: int | None = None
    for number, item in enumerate(items):
        inner = item.statements if isinstance(item, Nest) else (item,)
        waits = any(s.target in sources or old in reads(s) for s in inner)
        reduced = any(s.target in sources and s.over for s in inner)
        if isinstance(item, Nest) and (item.lane.dim, item.row.dim) == dims and not reduced:
            if home is None or waits:
                home = number
        elif waits:
            home = None
    return home


def split_dim(
    items: Sequence[Item], carries: Sequence[Carry], arrays: Mapping[str, Array]
) -> str | None:
    """The dim whose blocks are independent in this scan, as text, or None.

    Every nest is vectorised along it, every other statement is element-wise in it and plain, and
    what a nest sums over it is not used again in the scan.
    """
    nests = [item for item in items if isinstance(item, Nest)]
    if not nests or len({nest.lane.dim for nest in nests}) != 1:
        return None
    if any(len(arrays[c.before].dims) < 2 for c in carries):
        return None
    dim = nests[0].lane.dim
    row_results = {s.target for nest in nests for s in nest.statements if nest.lane in s.over}
    for item in items:
        inner = item.statements if isinstance(item, Nest) else (item,)
        if any(row_results.intersection(reads(s)) for s in inner):
            return None
        if isinstance(item, Statement):
            plain = all(
                index.variable is not None for load in loads(item.body) for index in load.index
            )
            lanes = [index.variable for index in item.index]
            if item.over or not plain or len(lanes) != 1 or lanes[0] is None:
                return None
            if lanes[0].dim != dim:
                return None
    return str(dim)


def _rotates(items: Sequence[Item], carries: Sequence[Carry]) -> bool:
    """Whether the first nest of a token can run with the last nest of the token before.

    True for `nest, narrow statements, nest` where the first nest reads nothing but carried matrices
    and values that are known before the scan, and does not replace a carried matrix.
    """
    nests = [n for n, item in enumerate(items) if isinstance(item, Nest)]
    if len(nests) != 2 or nests[0] != 0 or nests[1] != len(items) - 1:
        return False
    first, last = items[0], items[-1]
    assert isinstance(first, Nest) and isinstance(last, Nest)
    if (first.lane, first.row) != (last.lane, last.row):
        return False
    replaced = {carry.after for carry in carries}
    written = {
        s.target
        for item in items
        for s in ([item] if isinstance(item, Statement) else item.statements)
    }
    sources = {name for s in first.statements for name in reads(s)}
    own = {s.target for s in first.statements}
    return not own & replaced and not (sources - own) & written


def loads_of(nest: Nest) -> tuple[Load, ...]:
    """Every access of a nest, each once, in order."""
    return tuple(dict.fromkeys(load for s in nest.statements for load in loads(s.body)))


def targets(items: Collection[Item]) -> frozenset[str]:
    """All arrays that the items write."""
    return frozenset(
        s.target for item in items for s in (item.statements if isinstance(item, Nest) else (item,))
    )
