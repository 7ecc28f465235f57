"""Draw the tensors of a call, run it by a witness or by the product, compare tensor by tensor.

A result is a flat dict of float64 tensors: `y`, `final.<state>`, `d.<input>`, `d.params.<name>`,
`d.initial.<state>`. Everything that compares raises AssertionError and names the tensor.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from witnesses.table import Witness

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda n: n,
    "key": lambda n: n / max(n.shape[-1], 1) ** 0.5,
    "small": lambda n: 0.4 * n,
    "rate": torch.sigmoid,
    "small_rate": lambda n: 0.1 * torch.sigmoid(n),
    "positive": lambda n: n.abs() + 0.5,
    "decay": lambda n: -F.softplus(n - 2),
    "flag": lambda n: (n > 0).to(torch.int32),
    "grid": lambda n: (1.5 * n).round().clamp(-2, 2) / 2,  # kinks and ties
    "holes": lambda n: torch.where(n > 0.8, -torch.inf, -F.softplus(n)),  # log-decays, some -inf
}

NAN_BAND = 64


def guarded(x: Tensor) -> Tensor:
    """A copy of `x` that lies inside a buffer of NaN: a read outside it shows in the result."""
    if not x.is_floating_point():
        return x.clone()
    buffer = x.new_full([x.numel() + 2 * NAN_BAND], float("nan"))
    view = buffer[NAN_BAND : NAN_BAND + x.numel()].view(x.shape)
    view.copy_(x)
    return view.detach()


def check_band(name: str, view: Tensor) -> None:
    """The NaN around a guarded tensor must still be NaN, and the tensor itself must hold none."""
    whole = torch.empty(0, dtype=view.dtype).set_(view.untyped_storage())
    left = int(whole.isnan().sum())
    assert left == whole.numel() - view.numel(), f"{name}: written outside, or NaN written into it"


@dataclass(frozen=True)
class Problem:
    """Tensors of one call: inputs [B, T, H, *dims], heads [H, *dims], states [B, H, *dims]."""

    inputs: dict[str, Tensor]
    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    initial: dict[str, Tensor] | None
    weights: dict[str, Tensor]  # of the loss: one tensor for `y` and each `final.<state>`
    position: int | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> "Problem":
        def over(group: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
            return None if group is None else {n: change(t) for n, t in group.items()}

        groups = ("inputs", "params", "buffers", "initial", "weights")
        return replace(self, **{g: over(getattr(self, g)) for g in groups})

    def to(self, dtype: torch.dtype) -> "Problem":
        return self.map(lambda t: t.to(dtype) if t.is_floating_point() else t)

    def leaves(self) -> dict[str, Tensor]:
        """All that receives a gradient, by its name in a result."""
        found = {f"d.{n}": t for n, t in self.inputs.items() if t.is_floating_point()}
        found |= {f"d.params.{n}": t for n, t in self.params.items()}
        return found | {f"d.initial.{n}": t for n, t in (self.initial or {}).items()}


def draw(
    w: Witness, T: int, *, B: int = 2, H: int = 3, initial: bool = True, seed: int = 0
) -> Problem:
    """Tensors of a witness in float64; `initial` gives start states (never to learned ones)."""
    generator = torch.Generator().manual_seed(1000 * seed + T)

    def one(name: str, dims: str, *lead: int) -> Tensor:
        normal = torch.randn(*lead, *w.shape(dims), generator=generator, dtype=torch.float64)
        return DRAWS[w.draw.get(name, "normal")](normal)

    params = {n: one(n, dims, H) for n, dims in w.params.items()}
    if w.learned:
        params |= {n: one(n, dims, H) for n, dims in w.states.items()}
    given = initial and not w.learned
    return Problem(
        inputs={n: one(n, dims, B, T, H) for n, dims in w.inputs.items()},
        params=params,
        buffers={n: one(n, dims, H) for n, dims in w.buffers.items()},
        initial={n: one(n, dims, B, H) for n, dims in w.states.items()} if given else None,
        weights={"y": one("", w.output, B, T, H)}
        | {f"final.{n}": one("", dims, B, H) for n, dims in w.states.items()},
        position=3 if w.uses_position else None,
    )


def first_states(w: Witness, p: Problem) -> dict[str, Tensor]:
    """The states before the first token."""
    if p.initial is not None:
        return dict(p.initial)
    some = next(iter(p.inputs.values()))
    B, H = some.shape[0], some.shape[2]
    if w.learned:
        return {n: p.params[n].expand(B, *p.params[n].shape) for n in w.states}
    return {
        n: some.new_full((B, H, *w.shape(dims)), w.start.get(n, 0.0))
        for n, dims in w.states.items()
    }


def run_witness(w: Witness, p: Problem) -> tuple[Tensor, dict[str, Tensor]]:
    """The token loop: the witness's step mapped over batch and heads, token after token."""
    mapped = dict.fromkeys(p.inputs, 0) | {"t": None}
    over_heads = torch.vmap(w.step, in_dims=(mapped, 0, 0))
    over_batch = torch.vmap(over_heads, in_dims=(mapped, None, 0))
    heads = {**p.params, **p.buffers}
    states, outputs = first_states(w, p), []
    some = next(iter(p.inputs.values()))
    for t in range(some.shape[1]):
        token = {n: x[:, t] for n, x in p.inputs.items()}
        token["t"] = some.new_tensor(t + (p.position or 0))
        y, states = over_batch(token, heads, states)
        outputs.append(y)
    return torch.stack(outputs, 1), states


def run_op(op, p: Problem, **options) -> tuple[Tensor, dict[str, Tensor]]:
    """The public call, inputs by position."""
    if p.position is not None:
        options["position"] = p.position
    return op(
        *p.inputs.values(),
        params=p.params or None,
        buffers=p.buffers or None,
        initial_state=p.initial,
        output_final_state=True,
        **options,
    )


def collect(p: Problem, run: Callable[[Problem], tuple[Tensor, dict[str, Tensor]]]) -> dict:
    """Outputs, final states and every gradient of a loss on both, in float64."""
    p = p.map(lambda t: t.detach().requires_grad_(t.is_floating_point()))
    y, final = run(p)
    result = {"y": y} | {f"final.{n}": t for n, t in final.items()}
    out = {n: t.detach().double() for n, t in result.items()}
    roots = {n: t for n, t in result.items() if t.requires_grad}
    seeds = [p.weights[n].detach().to(t.dtype) for n, t in roots.items()]
    leaves = p.leaves()
    found: tuple[Tensor | None, ...] = (None,) * len(leaves)
    if roots:
        found = torch.autograd.grad([*roots.values()], [*leaves.values()], seeds, allow_unused=True)
    for (name, leaf), grad in zip(leaves.items(), found, strict=True):
        grad = torch.zeros_like(leaf) if grad is None else grad
        assert grad.shape == leaf.shape, f"{name}: gradient has shape {tuple(grad.shape)}"
        out[name] = grad.double()
    return out


def assert_close(name: str, got: Tensor, want: Tensor, allowed: float) -> None:
    """Largest error at most `allowed`; NaN and infinity never pass."""
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    if got.numel() == 0:
        return
    assert bool(got.isfinite().all()), f"{name}: not finite"
    error = float((got - want).abs().max())
    assert error <= allowed, f"{name}: error {error:.2e} > allowed {allowed:.2e}"


def allowance(want: Tensor, eager: Tensor, dtype: torch.dtype) -> float:
    """What a tensor may be off: a small multiple of what eager PyTorch in `dtype` is off.

    `eager` is the float32 token loop. Its error, scaled to the epsilon of `dtype`, estimates how
    ill-conditioned the tensor is; a few epsilons of the largest value are always granted.
    """
    if want.numel() == 0:
        return 0.0
    eps, eps32 = torch.finfo(dtype).eps, torch.finfo(torch.float32).eps
    eager_error = float((eager - want).abs().max())
    if eager_error != eager_error:  # eager PyTorch overflowed: no licence to do the same
        eager_error = 0.0
    factor = 100.0 if dtype == torch.float64 else 10.0
    floor = 8 * eps * float(want.abs().max())
    return factor * max(eager_error * eps / eps32, floor, 1e-6 * eps)


def compare(got: dict, want: dict, eager: dict, dtype: torch.dtype) -> None:
    """Same tensors on both sides, each within its allowance; all that differ are named."""
    assert set(got) == set(want), f"tensors differ: {sorted(set(got) ^ set(want))}"
    failures = []
    for name in want:
        try:
            assert_close(name, got[name], want[name], allowance(want[name], eager[name], dtype))
        except AssertionError as failure:
            failures.append(str(failure).splitlines()[0])
    assert not failures, "\n".join(failures)


def check_op(op, w: Witness, p: Problem, dtype: torch.dtype, **options) -> None:
    """The op on NaN-guarded tensors against the witness in float64 on the same rounded tensors."""
    rounded = p.to(dtype)
    want = collect(rounded.to(torch.float64), lambda q: run_witness(w, q))
    eager = collect(rounded.to(torch.float32), lambda q: run_witness(w, q))
    mine = rounded.map(guarded)
    got = collect(mine, lambda q: run_op(op, q, **options))
    compare(got, want, eager, dtype)
    for name, leaf in mine.leaves().items():
        check_band(name, leaf)
