"""The report in reading order: what a token does, its gradients, costs, memory, stability."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fwgen.commands.report import facts
from fwgen.commands.report.blocks import (
    Block,
    Code,
    Equations,
    Formulas,
    Items,
    Line,
    Math,
    Paragraph,
    Section,
    Table,
)
from fwgen.commands.report.equations import equations
from fwgen.commands.report.matrix import Matrix
from fwgen.commands.report.motion import motion, overwritten
from fwgen.commands.report.stability import stability
from fwgen.driver import Compilation
from fwgen.emit.costs import (
    FLOAT,
    bytes_backward,
    bytes_forward,
    flops,
    flops_backward,
    state_elements,
)
from fwgen.emit.latex import dim_latex, symbols, symbols_of
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import State

ROLES = (("input", "inputs"), ("param", "params"), ("buffer", "buffers"), ("state", "states"))
KEPT, STABILITY = "Kept for the backward", "Stability"


def sections(compilation: Compilation) -> list[Section]:
    """The whole report."""
    chunk = f"chunk: {facts.chunk_text(compilation)}"
    notes = stability(compilation.step, compilation.normal.transitions)
    return [
        Section("Forward", tuple(_forward(compilation))),
        Section("States", tuple(_states(compilation))),
        Section("Forms", (Items((("recurrent: legal",), (chunk,))),)),
        Section("Backward", tuple(_backward(compilation))),
        Section("Costs per token and head", tuple(_costs(compilation))),
        Section(KEPT, tuple(_kept(compilation))),
        Section(STABILITY, (Items(tuple(notes)),)),
    ]


def _forward(compilation: Compilation) -> Iterator[Block]:
    step = compilation.step
    names = symbols(step.arrays)
    lines: list[Line] = []
    for role, title in ROLES:
        group = [a for a in step.arrays if a.role == role]
        if group:
            lines.append((f"{title}: ", *_listed(Code(_shaped(a.name, a.dims)) for a in group)))
    if step.dims:
        sizes = (Math(f"{n} = {d}", f"{n} = {dim_latex(d)}") for n, d in step.dims)
        lines.append(("sizes: ", *_listed(sizes)))
    for state in step.states:
        after = Math("", f"({names[state.new]})")
        lines.append((Code(state.new), " ", after, " is ", Code(state.old), " after the token"))
    lines.append(("output: ", Code(step.output)))
    yield Items(tuple(lines))
    yield Equations(tuple(equations(step.statements, step.arrays)), names)


def _shaped(name: str, dims: Iterable[Dim]) -> str:
    """A name with its sizes, such as `W[V, K]`."""
    text = ", ".join(map(str, dims))
    return f"{name}[{text}]" if text else name


def _listed(parts: Iterable[Code | Math]) -> Line:
    line: list[str | Math | Code] = []
    for part in parts:
        line += [", ", part] if line else [part]
    return tuple(line)


def _states(compilation: Compilation) -> Iterator[Block]:
    step = compilation.step
    names = symbols(step.arrays)
    for state, transition in zip(step.states, compilation.normal.transitions, strict=True):
        name = Code(_shaped(state.name, step.array(state.old).dims))
        kind = facts.class_text(transition)
        if overwritten(step, state):
            kind += " by 0: every token overwrites it"
        yield Items(((name, f": {kind}"),))
        moved = _motion(compilation, state, names)
        if moved is not None:
            yield moved


def _motion(compilation: Compilation, state: State, names: dict[str, str]) -> Block | None:
    """A state's update in matrix notation; in index notation where its decay is a matrix."""
    links = motion(compilation.step, state)
    if links is None:
        return None
    if any(link.wide for link in links):
        made = {link.after for link in links}
        own = [s for s in compilation.step.statements if s.target in made]
        return Equations(tuple(equations(own, compilation.step.arrays)), names)
    return Formulas(tuple(map(Matrix(names).link, links)))


def _backward(compilation: Compilation) -> Iterator[Block]:
    backward = compilation.backward
    names = symbols_of(backward)
    arrays = (*backward.forward.arrays, *backward.arrays)
    seeds = (Code(f"{seed} of {name}") for name, seed in backward.seeds)
    bar = Math("", r"(\overline{\mathrm{NAME}})")
    yield Items(
        (
            (
                Code("d_NAME"),
                " ",
                bar,
                " is the gradient of the loss with respect to ",
                Code("NAME"),
            ),
            ("known from the loss and from later tokens: ", *_listed(seeds)),
            ("lines run from the top; ", Code("+="), " adds to what is known"),
        )
    )
    values = facts.values_of_backward(compilation)
    if values:
        yield Paragraph(("Values of the forward that the gradients use:",))
        yield Equations(tuple(equations(values, arrays)), names)
        yield Paragraph(("The gradients:",))
    incoming = {seed for _, seed in backward.seeds}
    yield Equations(tuple(equations(backward.statements, arrays, incoming)), names)
    found = (Code(f"{adjoint or 'zero'} of {name}") for name, adjoint in backward.results)
    yield Paragraph(("Results: ", *_listed(found), "."))


def _costs(compilation: Compilation) -> Iterator[Block]:
    step, backward = compilation.step, compilation.backward
    sizes = facts.sample(compilation)
    heading = ("FLOPs at " + " = ".join([*sizes, str(facts.SAMPLE)]),) if sizes else ()

    def row(title: str, work: Dim, traffic: Dim | None = None) -> tuple[str | Math, ...]:
        number = (f"{work.evaluate(sizes):,}",) if sizes else ()
        return (title, dim_math(work), *number, dim_math(traffic) if traffic else "")

    yield Table(
        (
            ("recurrent form", "FLOPs", *heading, "bytes in float32"),
            row("forward", flops(backward.forward.statements), bytes_forward(step)),
            row("backward", flops_backward(backward), bytes_backward(backward)),
            row("computed again for it", flops(facts.recomputed(compilation))),
        )
    )
    yield Items(
        (
            ("a multiply-add is two FLOPs, a function such as exp one",),
            ("bytes: inputs, output and their gradients, each once, without the states",),
            (
                "the states have ",
                dim_math(state_elements(step)),
                " elements",
            ),
        )
    )


def dim_math(dim: Dim) -> Math:
    """A size as a formula."""
    return Math(str(dim), dim_latex(dim))


def _kept(compilation: Compilation) -> Iterator[Block]:
    step, every = compilation.step, facts.interval(compilation)
    kept = facts.kept_values(compilation)
    first: Line = ("CPU kernels keep nothing: the inputs are enough",)
    if every is not None:
        size = dim_math(state_elements(step) * FLOAT)
        first = (f"CPU kernels keep the states of every {every}th token, ", size, " bytes: ")
        first = (*first, facts.replay_reason(compilation))
    elif kept:
        size = dim_math(facts.kept_per_token(compilation))
        yield Paragraph(("CPU kernels keep, of every token, ", size, " bytes:"))
        arrays = compilation.plan.step.arrays
        yield Equations(tuple(equations(kept, arrays)), symbols(arrays))
        first = ("they keep no state: the gradients of the states need none",)
    known = {array.name for array in step.arrays}
    names = dict.fromkeys(s.target for s in facts.recomputed(compilation) if s.target in known)
    again = _listed(map(Code, names))
    yield Items(
        (first, ("they compute again: ", *(again or ("nothing",))), _kept_by_triton(compilation))
    )


def _kept_by_triton(compilation: Compilation) -> Line:
    size = dim_math(state_elements(compilation.step) * FLOAT)
    which = ("the states at the start of every chunk of tokens, ", size, " bytes each")
    length = "a chunk is the least power of two that is sqrt(T) or more"
    if compilation.signature.saved:
        return ("Triton kernels keep ", *which, ", and compute the rest again; ", length)
    walk = "Triton kernels keep nothing: the backward walks forward first and writes "
    return (walk, *which, ", to compute the rest from; ", length)
