"""The holes of the recurrent templates: tensors, their memory, and the code of one token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fwgen.emit.triton.integers import integer_locals
from fwgen.emit.triton.lanes import Lanes
from fwgen.emit.triton.module import Module
from fwgen.emit.triton.names import Names
from fwgen.emit.triton.sizes import size_names, with_sizes
from fwgen.emit.triton.text import MUL, UNARY, number, product, size
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Backward, Position, State, Step
from fwgen.ir.walk import scalars
from fwgen.schedule.axes import tiling
from fwgen.schedule.passes import is_wide


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array in memory: `name` holds it in registers, `pointer` is the kernel's argument.

    `row` is the pointer to the array of this head, `at` to that of this token; `strides` names the
    steps of batch, token and head, and how many heads share one. `once` marks an
    array that every tile holds whole, so that only one may count it.
    """

    name: str
    pointer: str
    elements: str
    shape: str
    lanes: str
    mask: str
    once: bool
    row: str = ""
    at: str = ""
    cast: bool = True
    rank: int = 0
    strides: tuple[str, ...] = ()

    @property
    def offset(self) -> str:
        """` + at_K`, nothing for a scalar."""
        return f" + {self.lanes}" if self.lanes else ""

    @property
    def masked(self) -> str:
        """The mask arguments of a load."""
        return f", mask={self.mask}, other=0.0" if self.mask else ""

    @property
    def stored(self) -> str:
        """The mask argument of a store."""
        return f", mask={self.mask}" if self.mask else ""


@dataclass(frozen=True, slots=True)
class Carried:
    """A state: `tensor` is its value before the token, `next` the name of the one after it.

    A wide one lies in memory: `at` points to its value before the token, `next_at` to that after
    it, two slots that take turns; so do `carry_at` and `adjoint_at` for its adjoint.
    """

    tensor: Tensor
    next: str
    start: str
    value: str
    initial: str
    offset: str
    final: str
    replay: str
    grad_initial: str
    grad_final: str
    carry: str
    adjoint: str
    strides: tuple[str, str]
    wide: bool
    at: str
    next_at: str
    carry_at: str
    adjoint_at: str
    slots: str


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of an input or param: `tensor.name` is the adjoint of one token, "" if zero."""

    source: Tensor
    tensor: Tensor
    total: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Seed:
    """An incoming adjoint: the carried ones that it starts from, and whether it is the output's."""

    tensor: Tensor
    carries: tuple[str, ...]
    output: bool


@dataclass(frozen=True, slots=True)
class Token:
    """Code of one token, what of the inputs and params it reads, numbers of scratch.

    `stage` is scratch of a program, `shared` that of the programs of a head, each its own part.
    """

    lines: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    heads: tuple[Tensor, ...]
    stage: str
    shared: str = ""


@dataclass
class Recurrent:
    """Everything that the templates of the recurrent form need to know of a rule."""

    step: Step
    backward: Backward
    module: Module
    inputs: list[Tensor] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)
    states: list[Carried] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    seeds: list[Seed] = field(default_factory=list)
    sizes: Mapping[str, str] = field(default_factory=dict)
    elements: str = "0"
    positional: bool = False
    output: Tensor | None = None
    output_gradient: str = ""
    shapes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Block lengths of the blocks that loops hold, by name."""

    @property
    def large(self) -> bool:
        """Whether arrays lie in memory that are too large for registers."""
        return bool(self.module.wide)


def recurrent(step: Step, backward: Backward, large: bool = False) -> Recurrent:
    """Names and memory of a rule's recurrent kernels; `large`: wide arrays lie in memory."""
    sizes = size_names(step, backward)
    step, backward = with_sizes(step, backward, sizes)
    arrays = {a.name: a for a in step.arrays + backward.arrays}
    fresh = Names(sizes.values())
    labels = {dim: name for name, dim in step.dims if str(dim) not in sizes.values()}
    module = Module(
        arrays={**arrays},
        names={name: fresh.new(name) for name in arrays},
        pointers={},
        lanes=Lanes(fresh, labels),
        tiling=tiling(step, backward),
        fresh=fresh,
        integers=integer_locals(step),
    )
    if large:
        _enlarge(module, step.output)
    found = Recurrent(step, backward, module, sizes=sizes)
    pointers: dict[str, str] = {}
    for role in ("input", "param", "buffer"):  # the order in which a call passes them
        for array in (a for a in step.arrays if a.role == role):
            tensor = _tensor(module, array.name)
            (found.inputs if role == "input" else found.heads).append(tensor)
            pointers[array.name] = tensor.at or tensor.row
    module.pointers = pointers
    statements = step.statements + backward.statements
    found.positional = any(isinstance(n, Position) for s in statements for n in scalars(s.body))
    found.output = _tensor(module, step.output, "y")
    _states(found)
    _adjoints(found)
    return found


def _enlarge(module: Module, output: str) -> None:
    """Put wide arrays into memory; an output that every program holds whole forbids tiles."""
    whole = module.tiling is not None and module.tiling.axis(output) is None
    if whole and is_wide(module.arrays[output]):
        module.tiling = None
    for name, array in module.arrays.items():
        split = module.tiling.axis(name) if module.tiling else None
        if is_wide(array, split):
            module.wide.add(name)
    module.integers = module.integers - module.wide


def _tensor(module: Module, array: str, label: str = "") -> Tensor:
    """The tensor of an array; `label` names its memory, the array's own name by default."""
    info, name = module.arrays[array], module.names[array]
    label, fresh = label or name, module.fresh
    lanes, mask = module.grid(array)
    token = info.role == "input"
    return Tensor(
        name=name,
        pointer=fresh.new(f"{label}_ptr"),
        elements=product(info.dims).at(UNARY),
        shape=module.shape(array),
        lanes=lanes,
        mask=mask,
        once=module.tiling is not None and module.tiling.axis(array) is None,
        row=fresh.new(f"{label}_row") if info.role in ("input", "param", "buffer") else "",
        at=fresh.new(f"{label}_at") if token else "",
        cast=info.floating,
        rank=len(info.dims),
        strides=tuple(
            fresh.new(f"{label}_{axis}") for axis in ("batch", "token", "head", "group") if token
        ),
    )


def _states(found: Recurrent) -> None:
    step, module = found.step, found.module
    fresh, names = module.fresh, module.names
    results = dict(found.backward.results)
    offset = Dim()
    for state in step.states:
        tensor = _tensor(module, state.old, state.name)
        adjoint = results.get(state.old)
        label = state.name
        found.states.append(
            Carried(
                tensor=tensor,
                next=names[state.new],
                start=_start(tensor, state),
                value=str(number(state.init or 0.0)),
                initial=fresh.new(f"{label}_initial"),
                offset=f" + {size(offset).at(MUL)}" if offset.terms else "",
                final=fresh.new(f"{label}_final"),
                replay=fresh.new(f"{label}_replay"),
                grad_initial=fresh.new(f"d_{label}_initial"),
                grad_final=fresh.new(f"d_{label}_final"),
                carry=fresh.new(f"d_{label}_next"),
                adjoint=names[adjoint] if adjoint else "",
                strides=(fresh.new(f"{label}_batch"), fresh.new(f"{label}_head")),
                wide=state.old in module.wide,
                at=fresh.new(f"{label}_at"),
                next_at=fresh.new(f"{label}_next_at"),
                carry_at=fresh.new(f"d_{label}_next_at"),
                adjoint_at=fresh.new(f"d_{label}_at"),
                slots=fresh.new(f"{label}_slots"),
            )
        )
        elements = Dim.of(1)
        for dim in step.array(state.old).dims:
            elements = elements * dim
        offset = offset + elements
    found.elements = size(offset).at(UNARY)


def _start(tensor: Tensor, state: State) -> str:
    value = number(state.init or 0.0)
    if not state.init or not tensor.mask:
        return f"tl.full({tensor.shape}, {value}, tl.float32)"
    return f"tl.where({tensor.mask}, {value}, 0.0)"


def _adjoints(found: Recurrent) -> None:
    step, backward, module = found.step, found.backward, found.module
    results = dict(backward.results)
    for source in (*found.inputs, *found.heads):
        array = next(a for a in step.arrays if module.names[a.name] == source.name)
        if array.role == "buffer" or not array.floating:
            continue
        adjoint = results.get(array.name)
        tensor = _tensor(module, adjoint or array.name, f"d_{source.name}")
        if adjoint is None:
            tensor = replace(tensor, name="")
        total = module.fresh.new(f"total_{source.name}") if array.role == "param" else ""
        wide = array.name in module.wide
        found.gradients.append(Gradient(source, tensor, total, wide))
    carries: dict[str, list[str]] = {}
    for state, carried in zip(step.states, found.states, strict=True):
        carries.setdefault(state.new, []).append(carried.carry)
    for array_name, seed in backward.seeds:
        output = array_name == step.output
        label = "d_y" if output else f"d_{array_name}"
        tensor = _tensor(module, seed, label)
        if output:
            found.output_gradient = tensor.pointer
        if seed in module.wide:
            continue
        found.seeds.append(Seed(tensor, tuple(carries.get(array_name, ())), output))
