"""A drawn call: sizes, layout and seed in one small value, its tensors, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fwgen.runtime.signature import Poly, Signature
from fwgen.verify.draws import transform

Tensors = dict[str, torch.Tensor]
Sizes = tuple[tuple[str, int], ...]
MOST_GROWTH = 2000
"""Steps by which drawn sizes may grow until a rule has room."""


@dataclass(frozen=True)
class Case:
    """Everything that a call depends on; equal cases give equal tensors.

    `sizes` of the free dims; `draws`: the kind of each tensor, see `fwgen.verify.draws`.
    `loss`: what the gradients flow from, `y`, `final` or `both`. `layout`: `dense`, `padded` (a
    window of a larger tensor that is NaN elsewhere) or `heads first` (stored as [B, H, T, ...]).
    `grouped`: the first input has one head. `lengths`: of the sequences packed into one row, or ().
    """

    sizes: Sizes
    draws: tuple[tuple[str, str], ...]
    batch: int = 1
    tokens: int = 1
    heads: int = 1
    seed: int = 0
    initial: bool = False
    loss: str = "both"
    dtype: str = "float32"
    layout: str = "dense"
    grouped: bool = False
    lengths: tuple[int, ...] = ()
    position: int = 0


@dataclass(frozen=True)
class Problem:
    """The tensors of one call; `weights` are those of the loss, for `y` and `final.<state>`."""

    inputs: Tensors
    params: Tensors
    buffers: Tensors
    initial: Tensors | None
    weights: Tensors
    options: Mapping[str, Any]

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Problem:
        """Apply `change` to every floating tensor."""

        def over(group: Tensors | None) -> Any:
            if group is None:
                return None
            return {n: change(t) if t.is_floating_point() else t for n, t in group.items()}

        groups = ("inputs", "params", "buffers", "initial", "weights")
        return replace(self, **{name: over(getattr(self, name)) for name in groups})

    def leaves(self) -> Tensors:
        """What can receive a gradient, under its name in a result."""
        found = {f"d.{n}": t for n, t in self.inputs.items()}
        found |= {f"d.params.{n}": t for n, t in self.params.items()}
        found |= {f"d.initial.{n}": t for n, t in (self.initial or {}).items()}
        return {n: t for n, t in found.items() if t.is_floating_point()}


def draw(signature: Signature, case: Case) -> Problem:
    """Draw the tensors of a case in float64 and round them to its dtype."""
    generator = torch.Generator().manual_seed(case.seed)
    dtype: torch.dtype = getattr(torch, case.dtype)
    sizes, kinds = dict(case.sizes), dict(case.draws)
    rows = len(case.lengths) or case.batch
    lead = (1, sum(case.lengths)) if case.lengths else (case.batch, case.tokens)

    def tensor(name: str, dims: tuple[Poly, ...], *front: int, kind: str = "") -> torch.Tensor:
        shape = [*front, *(evaluate(dim, sizes) for dim in dims)]
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        value = transform(kind or kinds[name], normal, len(dims))
        return value.to(dtype) if value.is_floating_point() else value

    def heads(name: str) -> int:
        return 1 if case.grouped and name == signature.inputs[0].name else case.heads

    H = case.heads
    inputs = {s.name: tensor(s.name, s.dims, *lead, heads(s.name)) for s in signature.inputs}
    params = {s.name: tensor(s.name, s.dims, H) for s in signature.params}
    params |= {s.name: tensor(s.name, s.dims, H) for s in signature.starts}
    buffers = {s.name: tensor(s.name, s.dims, H) for s in signature.buffers}
    initial = {s.name: tensor(s.name, s.dims, rows, H) for s in signature.states}
    weights = {"y": tensor("y", signature.output.dims, *lead, H, kind="normal")}
    for s in signature.states:
        weights[f"final.{s.name}"] = tensor(s.name, s.dims, rows, H, kind="normal")
    return Problem(
        {name: _laid_out(value, case.layout) for name, value in inputs.items()},
        params,
        buffers,
        initial if case.initial else None,
        weights,
        _options(signature, case),
    )


def with_room(room: Sequence[Poly], drawn: Sizes) -> Sizes:
    """The sizes, or larger ones where something of the rule asks for more: `x[29]` for 30.

    What cannot be had by growing is left as it is: the call then says what is wrong.
    """
    sizes = dict(drawn)
    for _ in range(MOST_GROWTH):
        short = [size for size in room if evaluate(size, sizes) < 0]
        if not short:
            break
        grows = [names for names, factor in short[0] if factor > 0 and names]
        if not grows:
            break
        sizes[grows[0][0]] += 1
    return tuple(sizes.items())


def evaluate(dim: Poly, sizes: Mapping[str, int]) -> int:
    """The value of a size."""
    return sum(factor * math.prod(sizes[name] for name in names) for names, factor in dim)


def _options(signature: Signature, case: Case) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if case.lengths:
        bounds = [sum(case.lengths[:n]) for n in range(len(case.lengths) + 1)]
        options["cu_seqlens"] = torch.tensor(bounds, dtype=torch.int32)
    if signature.uses_position:
        options["position"] = case.position
    return options


def _laid_out(value: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in other memory."""
    if layout == "heads first":
        return value.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "dense" or not value.is_floating_point():
        return value
    buffer = value.new_full([n + 2 for n in value.shape], float("nan"))
    view = buffer[tuple(slice(1, n + 1) for n in value.shape)]
    return view.copy_(value)


def collect(problem: Problem, call: Callable[..., Any], loss: str, **options: Any) -> Tensors:
    """Run a call with gradients; outputs, final states and gradients in float64, by name.

    `call` is an op or its `reference`; `options` are further keywords of the call.
    """
    leafy = problem.map(lambda t: t.detach().requires_grad_())
    y, final = call(
        *leafy.inputs.values(),
        params=leafy.params or None,
        buffers=problem.buffers or None,
        initial_state=leafy.initial,
        output_final_state=True,
        **problem.options,
        **options,
    )
    results = {"y": y} | {f"final.{name}": t for name, t in final.items()}
    wanted = [n for n in results if loss == "both" or n.split(".")[0] == loss]
    roots = [n for n in wanted if results[n].requires_grad]
    leaves = leafy.leaves()
    grads: tuple[torch.Tensor | None, ...] = (None,) * len(leaves)
    if roots and leaves:
        seeds = [problem.weights[n].to(results[n].dtype) for n in roots]
        grads = torch.autograd.grad(
            [results[n] for n in roots], list(leaves.values()), seeds, allow_unused=True
        )
    found = {name: t.detach().double() for name, t in results.items()}
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        found[name] = torch.zeros_like(leaf).double() if grad is None else grad.double()
    return found
