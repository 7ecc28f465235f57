"""Faults that users met in hand-written kernels, as properties of every shipped rule.

Other files hold the classes that do not depend on a rule: layouts, packed sequences, large offsets,
PyTorch's services (`tests/contract`), the cache (`tests/runtime`). A few rules always run, the
others under the `slow` mark.
"""

from dataclasses import replace

import pytest
import torch

import fwgen
import problems
from contract_rules import with_sizes
from witnesses import WITNESSES, Witness

SOME = ("delta", "gla", "linear_attention", "recurrent_delta")
RULES = [
    pytest.param(name, marks=() if name in SOME else pytest.mark.slow)
    for name in fwgen.list_rules()
]
every_rule = pytest.mark.parametrize("name", RULES)
both = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
DECAYS = ("decay", "holes")


def check(w: Witness, p: problems.Problem, dtype: torch.dtype, floor: float = 0.0) -> None:
    """The op against its witness, on tensors inside NaN.

    Extreme inputs bring rules to kinks (`fwm` divides by the larger of 1 and a norm, which is then
    1) and cancellations. So beside the ordinary allowance an error may be ten times what inputs
    that differ in their last bit change in the exact result, and `floor`.
    """
    rounded = p.to(dtype)
    exact, single = rounded.to(torch.float64), rounded.to(torch.float32)
    want, eager = (
        problems.collect(q, lambda r: problems.run_witness(w, r)) for q in (exact, single)
    )
    op = fwgen.compile(w.name)
    mine = rounded.map(problems.guarded)
    got = problems.collect(mine, lambda q: problems.run_op(op, q))
    assert set(got) == set(want)
    moved = movement(w, exact, want, torch.finfo(dtype).eps)
    for n in want:
        allowed = problems.allowance(want[n], eager[n], dtype) + 10 * moved[n] + floor
        problems.assert_close(n, got[n], want[n], allowed)
    for n, leaf in mine.leaves().items():
        problems.check_band(n, leaf)


def movement(w: Witness, p: problems.Problem, want: dict, eps: float) -> dict[str, float]:
    """How much the results change with the last bit of the inputs."""
    generator = torch.Generator().manual_seed(7)

    def jittered(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t
        sign = torch.randint(2, t.shape, generator=generator) * 2 - 1
        return t * (1 + eps * sign)

    runs = [
        problems.collect(p.map(jittered), lambda q: problems.run_witness(w, q)) for _ in range(3)
    ]
    return {
        n: max(float((run[n] - t).abs().max()) if t.numel() else 0.0 for run in runs)
        for n, t in want.items()
    }


def drawn(w: Witness, kinds: tuple[str, ...]) -> list[str]:
    """The inputs that a witness draws in one of these ways."""
    return [n for n in w.inputs if w.draw.get(n, "normal") in kinds]


def with_inputs(p: problems.Problem, changed: dict[str, torch.Tensor]) -> problems.Problem:
    return replace(p, inputs={**p.inputs, **changed})


@both
@every_rule
def test_gates_that_close_on_random_tokens(name, dtype, poisoned):
    """Exponents must not become positive before they are masked: log-decays of -50."""
    w = WITNESSES[name]
    p, gates = problems.draw(w, 40, H=2), drawn(w, DECAYS)
    closed = torch.rand(2, 40, 2, generator=torch.Generator().manual_seed(3)) < 0.3
    for gate in gates:
        x = p.inputs[gate]
        x[closed] = -50.0
    got = problems.collect(p.to(dtype), lambda q: problems.run_op(fwgen.compile(name), q))
    assert all(bool(t.isfinite().all()) for t in got.values())
    if not any(f"d.{gate}" in got for gate in gates):
        return
    want = problems.collect(p.to(dtype).to(torch.float64), lambda q: problems.run_witness(w, q))
    for gate in gates:
        error = (got[f"d.{gate}"] - want[f"d.{gate}"]).norm()
        assert float(error) <= 1e-3 * float(want[f"d.{gate}"].norm()), gate


@both
@every_rule
def test_heads_that_have_nothing_in_common(name, dtype, poisoned):
    """An offset of the wrong head shows where heads differ by orders of magnitude."""
    w = WITNESSES[name]
    p = problems.draw(w, 9)
    scale = torch.tensor([0.05, 1.0, 1.7], dtype=torch.float64)
    plain = drawn(w, ("normal", "key", "small", *DECAYS))
    scaled = {n: p.inputs[n] * scale.view(1, 1, 3, *[1] * (p.inputs[n].dim() - 3)) for n in plain}
    check(w, with_inputs(p, scaled), dtype)


@both
@pytest.mark.parametrize("what", ["y", "final"])
@every_rule
def test_a_loss_on_one_result_alone(name, what, dtype, poisoned):
    """Gradients of a loss on the final state alone, or on the output alone."""
    w = WITNESSES[name]
    p = problems.draw(w, 8)
    kept = {n: t if n.startswith(what) else t * 0 for n, t in p.weights.items()}
    check(w, replace(p, weights=kept), dtype)


@every_rule
def test_nothing_comes_from_the_future(name):
    """Other tokens from P on change no bit before P, of outputs and of gradients."""
    w, op, cut = WITNESSES[name], fwgen.compile(name), 19
    one, two = (problems.draw(w, 37, seed=s).to(torch.float32) for s in (1, 2))
    later = {n: torch.cat([t[:, :cut], two.inputs[n][:, cut:]], 1) for n, t in one.inputs.items()}
    early = {n: t * 0 for n, t in one.weights.items()}
    early["y"][:, :cut] = one.weights["y"][:, :cut]
    first, second = (
        problems.collect(replace(one, inputs=i, weights=early), lambda q: problems.run_op(op, q))
        for i in (one.inputs, later)
    )
    for n in ("y", *(f"d.{i}" for i in w.inputs if f"d.{i}" in first)):
        assert torch.equal(first[n][:, :cut], second[n][:, :cut]), n


@every_rule
def test_a_call_may_be_cut_anywhere(name):
    """The state that a part leaves, and its position, make the next part what it is in one call."""
    w, op, T = WITNESSES[name], fwgen.compile(name), 6
    p = problems.draw(w, T)
    whole, last = problems.run_op(op, p)
    for cut in range(1, T):
        early = with_inputs(p, {n: t[:, :cut] for n, t in p.inputs.items()})
        y1, state = problems.run_op(op, early)
        place = None if p.position is None else p.position + cut
        late = with_inputs(p, {n: t[:, cut:] for n, t in p.inputs.items()})
        y2, end = problems.run_op(op, replace(late, initial=state, position=place))
        torch.testing.assert_close(torch.cat([y1, y2], 1), whole, rtol=1e-9, atol=1e-9)
        for n, t in end.items():
            torch.testing.assert_close(t, last[n], rtol=1e-9, atol=1e-9)


@both
@pytest.mark.parametrize("size", [1, 3, 8, 72])
@every_rule
def test_head_dims_of_every_kind(name, size, dtype, poisoned):
    """Smaller than a vector or a matrix instruction, odd, and no power of two.

    Of one element softmax and layernorm are constants, whose gradients of zero have roundings.
    """
    w = with_sizes(WITNESSES[name], K=size, V=size + 1, D=size)
    floor = 8 * torch.finfo(dtype).eps if size == 1 else 0.0
    check(w, problems.draw(w, 5, B=1, H=2), dtype, floor)


@pytest.mark.slow
@pytest.mark.parametrize("name", fwgen.list_rules())
def test_every_length(name, poisoned):
    """One kernel's chunks end before, at and after the last token."""
    w = WITNESSES[name]
    for T in (*range(1, 18), 31, 32, 33, 63, 64, 65):
        check(w, problems.draw(w, T, B=1, H=1), torch.float64)


@both
@every_rule
def test_tiny_inputs(name, dtype, poisoned):
    """Inputs of 1e-5: an epsilon in the wrong type, or a square that underflows."""
    w = WITNESSES[name]
    p = problems.draw(w, 7, initial=False)  # beside a state of 1 they would not be seen
    plain = drawn(w, ("normal", "key", "small"))
    check(w, with_inputs(p, {n: 1e-5 * p.inputs[n] for n in plain}), dtype)


@every_rule
def test_the_same_key_at_every_token(name, poisoned):
    """Rates up to 2 and repeated keys, where a triangular inverse of a chunk would grow."""
    w = WITNESSES[name]
    p = problems.draw(w, 24)
    same = {n: p.inputs[n][:, :1].expand_as(p.inputs[n]) for n in drawn(w, ("key",))}
    rates = {n: 2 * p.inputs[n] for n in drawn(w, ("rate",)) if n == "beta"}
    check(w, with_inputs(p, {**same, **rates}), torch.float64)


@every_rule
def test_gradients_that_are_expanded(name):
    """`y.sum().backward()` hands a gradient of stride 0 to the kernels."""
    w, op = WITNESSES[name], fwgen.compile(name)
    p = problems.draw(w, 9).map(lambda t: t.detach().requires_grad_(t.is_floating_point()))
    y, _ = problems.run_op(op, p)
    leaves = p.leaves()
    ones = torch.ones_like(y)
    some = torch.autograd.grad(y, [*leaves.values()], ones, retain_graph=True, allow_unused=True)
    y.sum().backward()
    for leaf, want in zip(leaves.values(), some, strict=True):
        got = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        assert torch.equal(got, torch.zeros_like(leaf) if want is None else want)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@every_rule
def test_sums_over_many_tokens_in_half_precision(name, half, poisoned):
    """States add up in float32 whatever the inputs are: no overflow, no lost token."""
    w, T = WITNESSES[name], 512
    p = problems.draw(w, T, B=1, H=1).to(half)
    exact = p.to(torch.float64)
    p = replace(p, initial=p.initial and {n: t.float() for n, t in p.initial.items()})
    y, final = problems.run_op(fwgen.compile(name), p)
    want, states = problems.run_witness(w, exact)
    eps = torch.finfo(half).eps
    assert y.dtype == half
    scale = float(want.abs().max())
    assert float((y.double() - want).abs().max()) <= 2 * eps * scale
    for n, t in final.items():
        assert t.dtype == torch.float32
        error = float((t.double() - states[n]).abs().max())
        assert error <= 1e-4 * float(states[n].abs().max()), n
