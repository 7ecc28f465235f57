"""Generates `reference.py`: a readable PyTorch token loop, the golden that kernels are held to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fwgen.emit.layout import call, definition, wrapped
from fwgen.emit.torch_text import TorchPrinter, method_head
from fwgen.emit.torch_views import TAKEN, size_name
from fwgen.errors import InternalError
from fwgen.ir.dims import ONE, ZERO, Dim
from fwgen.ir.nodes import Array, Index, Statement, Step
from fwgen.ir.text import statement_text

_LOOP = {
    "inputs", "params", "buffers", "states", "position", "start", "rows", "outputs", "index",
    "out", "zip", "enumerate",
}  # fmt: skip
_GATE = '''


class _Gate(torch.autograd.Function):
    """The identity; its gradient is exactly 0 where `condition` is false."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, condition: Tensor) -> Tensor:
        ctx.save_for_backward(condition)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
        (condition,) = ctx.saved_tensors
        return torch.where(condition, grad[0], 0), None


def _gate(x: Tensor, condition: Tensor) -> Tensor:
    """What the branch of a `where` reads: nothing flows back from the branch not taken."""
    return _Gate.apply(*torch.broadcast_tensors(x, condition))
'''


def reference_source(step: Step) -> str:
    """The module's text: `step(...)` for one token and `reference(...)` for sequences.

    `step` takes `[B, H, *dims]` tensors; `reference(inputs, params, buffers, states, position)`
    takes inputs `[B, T, H, *dims]`, params and buffers `[H, *dims]`, states `[B, H, *dims]` and
    returns the output `[B, T, H, *dims]` and the final states by name. All floating tensors share
    one dtype. Plain autograd; the text imports nothing but torch.
    """
    names = _python_names(step)
    like = names[_floating(step).name]
    printer = TorchPrinter(step, names, like)
    body = _statements(step, printer)
    sizes = [*printer.sizes]
    output = step.array(step.output)
    inner = [f"lead = {like}.shape[:2]"] if "lead" in printer.needs else []
    inner += [f"{size_name(name)} = {_binding(step, names, name)}" for name in sizes]
    results = ", ".join([names[step.output], *(names[s.new] for s in step.states)])
    positional = "t" in printer.needs
    arguments = [names[a.name] for a in _arguments(step)] + ["t"] * positional
    lines = [_header(step, printer), ""]
    lines += ["", *definition("step", [f"{a}: Tensor" for a in arguments], "tuple[Tensor, ...]")]
    lines.append(f'    """{_step_doc(step, positional)}"""')
    lines += [f"    {line}" for line in [*inner, *body, f"return {results}"]]
    lines += ["", "", *_loop(step, names, output, positional, arguments)]
    return "\n".join(lines) + "\n"


def _header(step: Step, printer: TorchPrinter) -> str:
    used = ["import math"] if "math" in printer.needs else []
    used += ["from typing import Any"] if "gate" in printer.needs else []
    text = f'"""The rule `{step.name}`, one token at a time in PyTorch.\n\n'
    text += "".join(f"    {statement_text(s)}\n" for s in step.statements) + '"""\n\n'
    text += "from __future__ import annotations\n\n"
    text += "\n".join(used) + "\n\n" if used else ""
    text += "import torch\n"
    text += "from torch import Tensor"
    if any("functional." in line for line in printer.printed):
        text += "\nfrom torch.nn import functional"
    return text + (_GATE.rstrip("\n") if "gate" in printer.needs else "")


def _step_doc(step: Step, positional: bool) -> str:
    last = "; `t` [B, 1]: its index" if positional else ""
    new = "state" if len(step.states) == 1 else "states"
    return f"One token: tensors [B, H, *dims] to the output and the new {new}{last}."


def _python_names(step: Step) -> dict[str, str]:
    """A Python name for every array: the user's, unless something else is called that."""
    dims = {size_name(name) for a in step.arrays for dim in a.dims for name in dim.names}
    taken = dims | TAKEN
    names: dict[str, str] = {}
    for array in step.arrays:
        avoid = taken if array.role == "local" else taken | _LOOP
        name = array.name
        while name in avoid:
            name += "_"
        taken.add(name)
        names[array.name] = name
    return names


def _arguments(step: Step) -> list[Array]:
    order = ("input", "param", "buffer", "state")
    old = [s.old for s in step.states]
    found = [a for role in order[:3] for a in step.arrays if a.role == role]
    return found + [step.array(name) for name in old]


def _floating(step: Step) -> Array:
    return next(a for a in reversed(_arguments(step)) if a.floating)


def _binding(step: Step, names: Mapping[str, str], dim: str) -> str:
    """How a free dim is read off the shape of an argument."""
    arrays = _arguments(step)
    for array in arrays:
        for place, size in enumerate(array.dims):
            if size == Dim.of(dim):
                return f"{names[array.name]}.shape[{place - len(array.dims)}]"
    for array in arrays:
        for place, size in enumerate(array.dims):
            factor = dict(size.terms).get((dim,), 0)
            rest = size - Dim.of(factor) * Dim.of(dim)
            if factor and dim not in rest.names and not rest.names:
                shape = f"{names[array.name]}.shape[{place - len(array.dims)}]"
                shape = shape if rest == ZERO else f"({shape} - {rest})"
                return shape if factor == 1 else f"{shape} // {factor}"
    raise InternalError(f"no argument of {step.name} has the size {dim}")


def _statements(step: Step, printer: TorchPrinter) -> list[str]:
    """One assignment per array, its equation above it."""
    last = {statement.target: n for n, statement in enumerate(step.statements)}
    known = {array.name: array for array in step.arrays}
    pieces: dict[str, list[Statement]] = {}
    lines: list[str] = []
    for n, statement in enumerate(step.statements):
        pieces.setdefault(statement.target, []).append(statement)
        if last[statement.target] != n:
            continue
        group = pieces[statement.target]
        lines += [f"# {statement_text(piece)}" for piece in group]
        target = printer.names[statement.target]
        if len(group) == 1 and _covers(group[0], known[statement.target]):
            text = f"{target} = {_region(group[0], printer)}"
        else:
            text = f"{target} = {_joined(group, known[statement.target], printer)}"
        printer.printed.append(text)
        lines += wrapped(text)
    return lines


def _covers(statement: Statement, array: Array) -> bool:
    return all(_extent(i) == d for i, d in zip(statement.index, array.dims, strict=True))


def _extent(index: Index) -> Dim:
    """How many positions of its axis a target index covers."""
    size = ONE
    for _, var in index.terms:
        size = size * var.dim
    return size


def _region(statement: Statement, printer: TorchPrinter) -> str:
    """The value of one statement in the shape of the region that it writes."""
    text = printer.value(statement)
    if all(len(index.terms) == 1 for index in statement.index):
        return text
    text = method_head(text)
    remaining = len(statement.free)
    for index in statement.index:
        count = len(index.terms)
        if count == 0:
            text += f".unsqueeze({-remaining - 1})"
        elif count > 1:
            text += f".flatten({-remaining}, {-remaining + count - 1})"
        remaining -= count
    return text


def _joined(group: Sequence[Statement], array: Array, printer: TorchPrinter) -> str:
    """Disjoint regions put together: `cat` along one axis, else a sum of padded pieces."""
    differing = [
        axis
        for axis, dim in enumerate(array.dims)
        if any(_extent(s.index[axis]) != dim for s in group)
    ]
    if len(differing) == 1:
        axis = differing[0]
        ordered: list[Statement] = []
        end = ZERO
        rest = list(group)
        while rest and (piece := _starting(rest, axis, end)) is not None:
            rest.remove(piece)
            ordered.append(piece)
            end = end + _extent(piece.index[axis])
        if not rest and end == array.dims[axis]:
            texts = [_region(piece, printer) for piece in ordered]
            return f"torch.cat([{', '.join(texts)}], {axis - len(array.dims)})"
    return " + ".join(_padded(piece, array, printer) for piece in group)


def _starting(pieces: Iterable[Statement], axis: int, offset: Dim) -> Statement | None:
    return next((piece for piece in pieces if piece.index[axis].offset == offset), None)


def _padded(piece: Statement, array: Array, printer: TorchPrinter) -> str:
    pads = []
    for index, dim in reversed(list(zip(piece.index, array.dims, strict=True))):
        pads.append(printer.dim(index.offset))
        pads.append(printer.dim(dim - index.offset - _extent(index)))
    return f"functional.pad({_region(piece, printer)}, ({', '.join(pads)}))"


def _loop(
    step: Step, names: Mapping[str, str], output: Array, positional: bool, arguments: Sequence[str]
) -> list[str]:
    """The function `reference`: binds tensors by name and runs `step` over the tokens."""
    by_role = {r: [a for a in step.arrays if a.role == r] for r in ("input", "param", "buffer")}
    like = names[_floating(step).name]
    lines = definition(
        "reference",
        [
            "inputs: dict[str, Tensor]",
            "params: dict[str, Tensor]",
            "buffers: dict[str, Tensor]",
            "states: dict[str, Tensor]",
            "position: Tensor | int = 0",
        ],
        "tuple[Tensor, dict[str, Tensor]]",
    )
    lines += [
        '    """Run the rule over all tokens; gives y [B, T, H, *dims] and the final states.',
        "",
        "    Inputs [B, T, H, *dims], params and buffers [H, *dims], states [B, H, *dims]; all",
        "    floating ones of one dtype; `position` (int, or int64 [B]): the first token's index.",
        '    """',
    ]
    lines += [f'    {names[a.name]} = inputs["{a.name}"]' for a in by_role["input"]]
    lines += [f'    {names[s.old]} = states["{s.name}"]' for s in step.states]
    batch = names[by_role["input"][0].name]
    for role, group in (("param", "params"), ("buffer", "buffers")):
        for array in by_role[role]:
            text = f'{group}["{array.name}"]'
            lines.append(
                f"    {names[array.name]} = {text}.expand({batch}.shape[0], *{text}.shape)"
            )
    if positional:
        lines.append(f"    start = torch.as_tensor(position, device={batch}.device).reshape(-1, 1)")
    tokens = [names[a.name] for a in by_role["input"]]
    head, source = _tokens(tokens, positional)
    lines += ["    outputs = []", *_wrapped_for(head, source)]
    results = ", ".join(["out", *(names[s.old] for s in step.states)])
    given = [f"{a}_t" if a in tokens else ("start + index" if a == "t" else a) for a in arguments]
    lines += call(f"        {results} = step(", given)
    lines.append("        outputs.append(out)")
    final = ", ".join(f'"{s.name}": {names[s.old]}' for s in step.states)
    sizes = [f"{batch}.shape[0]", "0", f"{batch}.shape[2]"]
    free = {name: f"({_binding(step, names, name)})" for d in output.dims for name in d.names}
    sizes += [_spelled(dim, free) for dim in output.dims]
    lines += [
        "    if not outputs:",
        f"        return {like}.new_zeros({', '.join(sizes)}), {{{final}}}",
        f"    return torch.stack(outputs, 1), {{{final}}}",
    ]
    return lines


def _tokens(inputs: Sequence[str], positional: bool) -> tuple[str, str]:
    """What the loop over tokens binds, and what it runs over."""
    source = ", ".join(f"{name}.unbind(1)" for name in inputs)
    head = ", ".join(f"{name}_t" for name in inputs)
    if len(inputs) > 1:
        source = f"zip({source}, strict=True)"
    if not positional:
        return head, source
    return f"index, {f'({head})' if len(inputs) > 1 else head}", f"enumerate({source})"


def _wrapped_for(head: str, source: str) -> list[str]:
    line = f"    for {head} in {source}:"
    if len(line) <= 100:
        return [line]
    return [f"    rows = {source}", f"    for {head} in rows:"]


def _spelled(dim: Dim, names: Mapping[str, str]) -> str:
    """A size with every named dim replaced by an expression."""
    terms = []
    for monomial, coefficient in dim.terms:
        factors = [names[name] for name in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, str(coefficient))
        terms.append(" * ".join(factors))
    text = " + ".join(terms) or "0"
    return text[1:-1] if text.startswith("(") and len(terms) == 1 and text.count("(") == 1 else text
