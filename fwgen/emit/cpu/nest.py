"""Nests for the template: registers, what is loaded where, and the lines of the element loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fwgen.emit.cpu.names import dim_text
from fwgen.emit.cpu.printer import ATOM, SUM, Surroundings, Text, as_real, scalar_text
from fwgen.emit.cpu.storage import Storage
from fwgen.errors import InternalError
from fwgen.ir.carries import Carry
from fwgen.ir.nodes import Apply, Const, Index, IndexValue, Load, Scalar, Size, Statement
from fwgen.ir.text import statement_text
from fwgen.ir.walk import loads
from fwgen.schedule.plan import Nest


@dataclass(frozen=True, slots=True)
class Part:
    """Statements of a nest at one token; `token` is its text in C++, `tag` tells tokens apart.

    With `follows` they read the state that an earlier part made, otherwise the one in memory.
    """

    statements: tuple[Statement, ...]
    token: str
    tag: str = ""
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Register:
    """A C++ variable and the memory that it is loaded from or stored to."""

    name: str
    pointer: str
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the element loop.

    `kind`: `define` a vector, add to a `lane` accumulator, to a `row` sum or to a `total`.
    `store`: where a defined matrix element goes, or "".
    """

    kind: str
    name: str
    value: str
    store: str = ""


@dataclass
class NestView:
    """A nest for the template; every list keeps the order of first use."""

    rows: str
    lanes: str
    equations: list[str] = field(default_factory=list)
    lane_inputs: list[Register] = field(default_factory=list)
    row_inputs: list[Register] = field(default_factory=list)
    scalars: list[Register] = field(default_factory=list)
    matrices: list[Register] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    lane_outputs: list[Register] = field(default_factory=list)
    row_outputs: list[Register] = field(default_factory=list)
    totals: list[Register] = field(default_factory=list)


def nest_view(
    nest: Nest, parts: Sequence[Part], carries: Sequence[Carry], storage: Storage
) -> NestView:
    """The view of a nest, or of the nests of several tokens that run fused, in order."""
    view = NestView(storage.dim(nest.row.dim), storage.dim(nest.lane.dim))
    builder = _Builder(nest, storage, view, {c.before: c.after for c in carries})
    for part in parts:
        for statement in part.statements:
            builder.add(statement, part)
    return view


class _Builder:
    """Collects registers while the statements of a nest are printed."""

    def __init__(
        self, nest: Nest, storage: Storage, view: NestView, follows: Mapping[str, str]
    ) -> None:
        self.nest, self.storage, self.view, self.follows = nest, storage, view, follows
        self.defined: dict[str, str] = {}
        self.known: dict[tuple[str, str, str], str] = {}

    def add(self, statement: Statement, part: Part) -> None:
        """Print one statement."""
        note = f" (token {part.token})" if part.tag else ""
        self.view.equations.append(statement_text(statement) + note)
        around = Surroundings(
            lambda load: self.load(load, part), self.index, self.size, f"(position + {part.token})"
        )
        value = as_real(scalar_text(statement.body, around)).text
        over = set(statement.over)
        target = self.storage.places[statement.target]
        padded = _vanishes(statement.body, self.nest, self.storage)
        if self.nest.lane in over and not padded:
            value = f"fw::tail((i0 + b) * fw::L, {self.view.lanes}, {value})"
        if not over:
            self.define(statement, part, value if padded else self.cut(value))
            return
        if over == {self.nest.row}:
            kind, outputs = "lane", self.view.lane_outputs
        elif over == {self.nest.lane}:
            kind, outputs = "row", self.view.row_outputs
        else:
            kind, outputs = "total", self.view.totals
        name = self.register(statement.target, part, f"{kind}_sum")
        output = Register(name, self.storage.slot(target, part.token), statement.accumulate)
        if all(o.name != name for o in outputs):
            outputs.append(output)
        self.view.lines.append(Line(kind, name, value))

    def cut(self, value: str) -> str:
        """The value with zeros in the padding."""
        return f"fw::tail((i0 + b) * fw::L, {self.view.lanes}, {value})"

    def define(self, statement: Statement, part: Part, value: str) -> None:
        """An element of a matrix: a register, and its store."""
        place = self.storage.places[statement.target]
        pointer = self.storage.slot(place, part.token)
        if statement.accumulate:
            value = f"{self.load(Load(statement.target, statement.index), part).text} + {value}"
        name = self.register(statement.target, part, "new" if statement.accumulate else "ij")
        overwritten = [n for n, line in enumerate(self.view.lines) if line.store == pointer]
        for number in overwritten:
            self.view.lines[number] = replace(self.view.lines[number], store="")
        self.view.lines.append(Line("define", name, value, pointer))
        self.defined[statement.target] = name

    def load(self, load: Load, part: Part) -> Text:
        """The register that holds an element access, loaded on first use."""
        name = load.array
        if name in self.defined:
            return Text(self.defined[name], ATOM, "vec")
        if part.follows and self.follows.get(name) in self.defined:
            return Text(self.defined[self.follows[name]], ATOM, "vec")
        place = self.storage.places[name]
        pointer = self.storage.slot(place, part.token)
        if len(load.index) == 2:
            return self.fetched(load, part, self.view.matrices, pointer, "vec", "ij")
        if not load.index:
            element = self.storage.element(load, {}, part.token)
            return self.fetched(load, part, self.view.scalars, element, "real", "s")
        var = load.index[0].variable
        if var == self.nest.lane:
            register = self.fetched(load, part, self.view.lane_inputs, pointer, "vec", "v")
            return Text(f"{register.text}[b]", ATOM, "vec")
        if var == self.nest.row:
            return self.fetched(load, part, self.view.row_inputs, pointer, "vec", "j")
        raise InternalError(f"{name} is read at a variable that is not of the nest")

    def fetched(
        self, load: Load, part: Part, where: list[Register], pointer: str, kind: str, suffix: str
    ) -> Text:
        """A register that is loaded before it is used; the same one for the same memory."""
        key = (load.array, pointer, suffix)
        if key not in self.known:
            self.known[key] = self.register(load.array, part, suffix)
            where.append(Register(self.known[key], pointer))
        return Text(self.known[key], ATOM, "vec" if kind == "vec" else "real")

    def register(self, array: str, part: Part, suffix: str) -> str:
        """The C++ variable for an array at one token; `suffix` tells its roles apart."""
        tag = f"{part.tag}_" if part.tag else ""
        return self.storage.names.of(("register", array, suffix, tag), f"{array}_{tag}{suffix}")

    def index(self, index: Index) -> Text:
        """The value of an index expression."""
        if index.variable == self.nest.lane:
            return Text("(fw::lanes() + real((i0 + b) * fw::L))", ATOM, "vec")
        if index.variable == self.nest.row:
            return Text("at_row", ATOM, "int")
        return Text(dim_text(index.offset, self.storage.names), 0, "int")

    def size(self, size: Size) -> Text:
        """The value of a dim."""
        text = self.storage.dim(size.dim)
        return Text(text, SUM if " " in text else ATOM, "int")


def _vanishes(node: Scalar, nest: Nest, storage: Storage) -> bool:
    """Whether an expression is zero in the padding, where all lane accesses are zero."""
    match node:
        case Const(value):
            return value == 0
        case Load(_, index):
            return any(i.variable == nest.lane for i in index)
        case Apply("mul", args):
            return any(_vanishes(arg, nest, storage) for arg in args)
        case Apply("add" | "sub" | "neg", args):
            return all(_vanishes(arg, nest, storage) for arg in args)
        case Apply("div", (left, right)):
            return _vanishes(left, nest, storage) and not _lane_inside(right, nest)
        case Apply("tanh" | "sin" | "abs" | "relu" | "square" | "sign" | "silu" | "gelu", (arg,)):
            return _vanishes(arg, nest, storage)
        case _:
            return False


def _lane_inside(node: Scalar, nest: Nest) -> bool:
    if isinstance(node, IndexValue):
        return True
    return any(i.variable == nest.lane for load in loads(node) for i in load.index)
