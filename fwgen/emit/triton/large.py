"""The code of one token where wide arrays lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fwgen.emit.triton.blocks import BlockWriter
from fwgen.emit.triton.kernels import Carried, Gradient, Recurrent, Token
from fwgen.emit.triton.module import Module, Stage, alive, words
from fwgen.emit.triton.text import size
from fwgen.ir.nodes import Const, Index, Load, Scalar, State, Statement, Var
from fwgen.schedule.graph import needed

OUTPUT_AT = "output_at"
"""What the templates call the place of a wide output, or of its adjoint, at one token."""


@dataclass
class _Code:
    """Statements of a token and the pointers to those of its wide arrays that are not scratch."""

    module: Module
    statements: list[Statement] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)

    def place(self, like: str, address: str, label: str) -> str:
        """A new array, as large as another one, at an address."""
        module, name = self.module, f"{like} at {address}"
        if name not in module.arrays:
            module.arrays[name] = replace(module.arrays[like], name=name, role="local")
            module.names[name] = module.fresh.numbered(f"{label}_{module.names[like]}")
            module.wide.add(name)
            if module.tiling is not None and module.tiling.axis(like) is not None:
                place = (name, module.tiling.axis(like) or 0)
                module.tiling = replace(module.tiling, places=module.tiling.places | {place})
        self.addresses[name] = address
        return name

    def set(self, target: str, source: str | None, accumulate: bool = False) -> Statement:
        """`target[...] = source[...]`, or zero."""
        dims = self.module.arrays[target].dims
        index = tuple(Index.of(Var(f"i{n}", dim)) for n, dim in enumerate(dims))
        body: Scalar = Const(0.0) if source is None else Load(source, index)
        return Statement(target, index, body, accumulate=accumulate)

    def send(self, source: str | None, like: str, address: str, owned: bool) -> None:
        """Bring an array to an address: it lies there itself if it is `owned`, or is copied."""
        if source is not None and owned:
            self.addresses[source] = address
            self.wanted.append(source)
            if not any(s.target == source for s in self.statements):
                self.statements.append(self.set(source, None))
        else:
            target = self.place(like, address, "stored")
            self.statements.append(self.set(target, source))
            self.wanted.append(target)

    def token(self, found: Recurrent, narrow: Sequence[str] = ()) -> Token:
        """The printed code; `narrow` arrays are in registers at its end."""
        stage, shared = Stage("stage_row"), Stage("shared_row")
        writer = BlockWriter(self.module, stage, shared, self.addresses, self.begun)
        writer.write(needed(self.statements, [*self.wanted, *narrow]), narrow)
        names = [writer.require(array) for array in narrow]
        lines = alive(writer.lines, lambda: names)
        found.shapes.update(writer.shapes())
        used = words(" ".join([*lines, *names]))
        return Token(
            tuple(lines),
            tuple(t for t in found.inputs if t.name in used or t.at in used),
            tuple(t for t in found.heads if t.name in used or t.row in used),
            str(size(stage.total)) if stage.offsets else "",
            str(size(shared.total)) if shared.offsets else "",
        )


def forward_token(found: Recurrent, output: bool) -> Token:
    """The forward statements; with `output` those of the output too."""
    step, module = found.step, found.module
    code = _Code(module, list(step.statements))
    narrow = []
    for state, carried in _states(found):
        if carried.wide:
            code.addresses[state.old] = carried.at
            code.send(state.new, state.old, carried.next_at, _is_owned(found, state))
        else:
            narrow.append(state.new)
    if output and step.output in module.wide:
        code.send(step.output, step.output, OUTPUT_AT, owned=False)
    elif output:
        narrow.append(step.output)
    return code.token(found, narrow)


def reverse_token(found: Recurrent) -> Token:
    """The forward statements once more, as far as memory has no results, then the adjoint's."""
    step, backward, module = found.step, found.backward, found.module
    code = _Code(module)
    known = set()
    for state, carried in _states(found):
        if carried.wide:
            code.addresses[state.old] = carried.at
            if _is_owned(found, state):
                code.addresses[state.new] = carried.next_at
                known.add(state.new)
    code.statements += [s for s in step.statements if s.target not in known]
    _start_seeds(found, code)
    code.statements += backward.statements
    results = dict(backward.results)
    for state, carried in _states(found):
        if carried.wide:
            adjoint = results[state.old]
            owned = _is_own_result(found, adjoint)
            code.send(adjoint, state.old, carried.adjoint_at, owned)
    for gradient in found.gradients:
        if gradient.wide and gradient.tensor.name:
            _send_gradient(found, code, gradient)
    narrow = [a for a in results.values() if a is not None and a not in module.wide]
    code.begun += known
    return code.token(found, list(dict.fromkeys(narrow)))


def _states(found: Recurrent) -> list[tuple[State, Carried]]:
    return list(zip(found.step.states, found.states, strict=True))


def _is_owned(found: Recurrent, state: State) -> bool:
    """Whether the array after the token is that of this state alone."""
    same = [s for s in found.step.states if s.new == state.new]
    return found.module.arrays[state.new].role == "local" and len(same) == 1


def _is_own_result(found: Recurrent, adjoint: str | None) -> bool:
    """Whether an adjoint is that of one array alone, and complete only at the end."""
    if adjoint is None:
        return False
    results = [a for _, a in found.backward.results]
    return results.count(adjoint) == 1 and found.module.arrays[adjoint].role == "local"


def _start_seeds(found: Recurrent, code: _Code) -> None:
    """What comes in from the next token, and from the output's gradient."""
    for array, seed in found.backward.seeds:
        if seed not in found.module.wide:
            continue
        for state, carried in _states(found):
            if state.new == array:
                source = code.place(state.old, carried.carry_at, "d_next")
                code.statements.append(code.set(seed, source, accumulate=True))
        if array == found.step.output:
            source = code.place(seed, OUTPUT_AT, "given")
            code.statements.append(code.set(seed, source, accumulate=True))


def _send_gradient(found: Recurrent, code: _Code, gradient: Gradient) -> None:
    """Gradients of inputs are stored token by token, those of params summed up in memory."""
    tensor = gradient.tensor
    adjoint = next(a for a, name in found.module.names.items() if name == tensor.name)
    tile = f" + tile.to(tl.int64) * {tensor.pointer}_tile" if tensor.once else ""
    if gradient.total:
        address = f"{tensor.pointer}{tile} + (sequence * H + head) * {tensor.elements}"
        target = code.place(adjoint, address, "total")
        code.statements.append(code.set(target, adjoint, accumulate=True))
        code.wanted.append(target)
        code.begun.append(target)
    else:
        address = f"{tensor.pointer}{tile} + row_at * {tensor.elements}"
        code.send(adjoint, adjoint, address, _is_own_result(found, adjoint))


def save_code(found: Recurrent) -> tuple[str, ...]:
    """Copies wide states into the checkpoint at `saved_row`."""
    code = _Code(found.module)
    for state, carried in _states(found):
        if carried.wide:
            code.addresses[state.old] = carried.at
            code.send(state.old, state.old, f"saved_row{carried.offset}", owned=False)
    return code.token(found).lines


def restore_code(found: Recurrent) -> tuple[str, ...]:
    """Copies the checkpoint at `saved_row` into wide states."""
    code = _Code(found.module)
    for state, carried in _states(found):
        if carried.wide:
            source = code.place(state.old, f"saved_row{carried.offset}", "saved")
            code.addresses[state.old] = carried.at
            code.statements.append(code.set(state.old, source))
            code.wanted.append(state.old)
    return code.token(found).lines
