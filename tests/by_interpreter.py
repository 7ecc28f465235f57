"""A problem through front end, derived backward and numpy interpreter: no kernel, no compiler."""

import numpy as np
import torch
from torch import Tensor

from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.ir.interpret import run, run_backward
from fwgen.language import load_rule, lower
from problems import Problem


def collect(source: str, p: Problem, sizes: dict[str, int]) -> dict[str, Tensor]:
    """Outputs, final states and gradients of a problem of one sequence and one head (B = H = 1)."""
    step = lower(load_rule(source))
    backward = differentiate(hoist(step))
    given = {n: x.shape[1:] for n, x in (p.params | p.buffers).items()}
    declared = [(a.dims, given[a.name]) for a in step.arrays if a.name in given]
    # Free dims of a map's own tensors (`t2r_M`) are bound from them, as a call does.
    bound = {str(d): n for dims, shape in declared for d, n in zip(dims, shape, strict=True)}

    def first(group: dict[str, Tensor] | None, *at: int) -> dict[str, np.ndarray]:
        return {n: x[at].numpy() for n, x in (group or {}).items()}

    inputs = {n: x[0, :, 0].numpy() for n, x in p.inputs.items()}
    call = (inputs, first(p.params | p.buffers, 0), first(p.initial, 0, 0), bound | sizes)
    start = p.position or 0
    y, final = run(backward.forward, *call, start)
    seeds = {n: p.weights[f"final.{n}"][0, 0].numpy() for n in final}
    found = run_backward(backward, *call, p.weights["y"][0, :, 0].numpy(), seeds, start)
    result = {"y": y[None, :, None]} | {f"final.{n}": x[None, None] for n, x in final.items()}
    # An input that only conditions look at has no adjoint; of integers there is none anyway.
    zero = {n: np.zeros_like(x) for n, x in inputs.items() if p.inputs[n].is_floating_point()}
    result |= {f"d.{n}": found.get(n, x)[None, :, None] for n, x in zero.items()}
    result |= {f"d.params.{n}": found[n][None] for n in p.params}
    result |= {f"d.initial.{n}": found["state", n][None, None] for n in p.initial or {}}
    return {n: torch.from_numpy(np.ascontiguousarray(x)) for n, x in result.items()}
