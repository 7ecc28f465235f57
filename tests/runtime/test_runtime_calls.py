"""What a call gives, against the hand-written token loop."""

import copy
import pickle

import pytest
import torch
from hand_delta import delta_signature, draw
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fwgen.errors import ArgumentError, UnsupportedError
from fwgen.runtime.op import CompiledRule


def gradients(run, tensors, weights):
    """Outputs of `run()` and the gradients of a weighted sum of all of them."""
    y, final = run()
    outputs = [y, *final.values()]
    loss = sum((t * w.to(t.dtype)).sum() for t, w in zip(outputs, weights, strict=True))
    found = torch.autograd.grad(loss, tensors, allow_unused=True)  # without tokens, in the loop
    zeros = [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, found, strict=True)]
    return [*outputs, *zeros]


def assert_equal(got, want, tolerance):
    for index, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype, index
        error = (a - b).abs().max().item() if a.numel() else 0.0
        assert error <= tolerance * max(1.0, b.abs().max().item() if b.numel() else 0.0), index


def both(op, inputs, initial, **options):
    """The same call by kernels and by the loop, gradients included."""
    tensors = [*inputs.values()] + ([initial] if initial is not None else [])
    T, H = inputs["q"].shape[1], max(t.shape[2] for t in inputs.values())
    cu = options.get("cu_seqlens")
    N = inputs["q"].shape[0] if cu is None else len(cu) - 1
    K, V = inputs["q"].shape[-1], inputs["v"].shape[-1]
    generator = torch.Generator().manual_seed(7)
    B = inputs["q"].shape[0]
    weights = [torch.randn(B, T, H, V, generator=generator), torch.randn(N, H, V, K)]
    options |= {"initial_state": initial, "output_final_state": True}
    return [
        gradients(lambda n=n: op(*inputs.values(), backend=n, **options), tensors, weights)
        for n in ("cpu", "reference")
    ]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("T", [0, 1, 7])
@pytest.mark.parametrize("given", [False, True])
def test_kernels_match_the_loop(op, T, dtype, tolerance, given):
    inputs = draw(T, dtype=dtype, grad=True)
    initial = torch.randn(2, 4, 3, 5, dtype=dtype, requires_grad=True) if given else None
    assert_equal(*both(op, inputs, initial), tolerance)


def test_regular_sizes_have_kernels_of_their_own(op):
    """The size-generic library and a specialised one: equal results, chosen by sizes alone."""
    backend = op._kernels.backend("cpu")
    for K, V, fixed in ((5, 3, ()), (16, 3, (0,)), (32, 48, (0, 1))):
        inputs = draw(6, K=K, V=V, grad=True)
        assert_equal(*both(op, inputs, None), 1e-5)
        sizes = (K, V)
        macros = ("FWGEN_REAL=float", *(f"FWGEN_SIZE_{i}={sizes[i]}" for i in fixed))
        assert macros in backend._libraries


def test_no_sequences(op):
    inputs = draw(3, B=0, grad=True)
    assert_equal(*both(op, inputs, None), 0.0)
    y, final = op(*draw(0, B=1).values(), cu_seqlens=torch.tensor([0]), output_final_state=True)
    assert y.shape == (1, 0, 4, 3) and final["W"].shape == (0, 4, 3, 5)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_packed_sequences(op, kind):
    bounds = torch.tensor([0, 0, 4, 4, 9, 9], dtype=kind)
    initial = torch.randn(5, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    inputs = draw(9, B=1, dtype=torch.float64, grad=True)
    assert_equal(*both(op, inputs, initial, cu_seqlens=bounds), 1e-12)


def test_boundaries_are_read_at_every_call(op):
    inputs, bounds = draw(6, B=1).values(), torch.tensor([0, 3, 6])
    op(*inputs, cu_seqlens=bounds)
    bounds.copy_(torch.tensor([0, 9, 6]))
    with pytest.raises(ArgumentError, match="cu_seqlens"):
        op(*inputs, cu_seqlens=bounds)


@pytest.mark.parametrize("heads", [1, 2])
def test_grouped_heads(op, heads):
    inputs = draw(5, dtype=torch.float64)
    inputs["k"], inputs["beta"] = inputs["k"][:, :, :heads], inputs["beta"][:, :, :heads]
    inputs = {n: t.requires_grad_() for n, t in inputs.items()}
    assert_equal(*both(op, inputs, None), 1e-12)


def test_half_types_keep_their_own(op):
    inputs = draw(8, grad=True)
    mixed = {n: t if n == "beta" else t.bfloat16() for n, t in inputs.items()}
    mixed = {n: t.detach().requires_grad_() for n, t in mixed.items()}
    y, final = op(*mixed.values(), output_final_state=True)
    assert y.dtype == torch.bfloat16 and final["W"].dtype == torch.float32
    got = torch.autograd.grad(y.float().sum(), list(mixed.values()))
    assert [g.dtype for g in got] == [t.dtype for t in mixed.values()]
    wide = {n: t.detach().float().requires_grad_() for n, t in mixed.items()}
    z, _ = op(*wide.values())
    want = torch.autograd.grad(z.sum(), list(wide.values()))
    assert torch.equal(y, z.bfloat16())
    assert all(torch.equal(a, b.to(a.dtype)) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize(
    "layout",
    [
        lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
        lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
        lambda t: torch.stack([t, t * float("nan")], -1)[..., 0],
        lambda t: torch.cat([t * float("nan"), t], 1)[:, t.shape[1] :],
        lambda t: torch._neg_view(-t),
    ],
    ids=["head first", "last axis slow", "last axis strided", "gaps", "negated view"],
)
def test_layouts(op, layout):
    inputs = draw(6, dtype=torch.float64)
    want = op(*inputs.values())[0]
    strange = {n: layout(t).requires_grad_() for n, t in inputs.items()}
    assert_equal([op(*strange.values())[0]], [want], 0.0)
    assert_equal(*both(op, strange, None), 1e-12)


def test_expanded_gradient(op):
    inputs = draw(6, dtype=torch.float64, grad=True)
    got = torch.autograd.grad(op(*inputs.values())[0].sum(), list(inputs.values()))
    want = torch.autograd.grad(op.reference(*inputs.values())[0].sum(), list(inputs.values()))
    assert_equal(got, want, 1e-12)


def test_step_is_a_call_of_one_token(op):
    inputs, state = draw(4), None
    want, final = op(*inputs.values(), output_final_state=True)
    for t in range(4):
        before = None if state is None else state["W"].clone()
        y, new = op.step(*(u[:, t] for u in inputs.values()), state=state)
        assert before is None or torch.equal(before, state["W"])
        assert_equal([y], [want[:, t]], 1e-6)
        state = new
    assert_equal([state["W"]], [final["W"]], 1e-6)


def test_step_is_differentiable(op):
    inputs = {n: t[:, 0].detach().requires_grad_() for n, t in draw(1).items()}
    state = torch.randn(2, 4, 3, 5, requires_grad=True)
    y, new = op.step(**inputs, state={"W": state})
    found = torch.autograd.grad(y.sum() + new["W"].sum(), [*inputs.values(), state])
    assert all(g.abs().max() > 0 for g in found)


def test_only_wanted_gradients(op):
    inputs = draw(4)
    inputs["v"].requires_grad_()
    op(*inputs.values())[0].sum().backward()
    assert inputs["v"].grad is not None and inputs["k"].grad is None


def test_unused_input_gets_zeros(sources):
    signature = delta_signature(hash="f" * 64, constant=("beta",))
    inputs = draw(4, grad=True)
    y, _ = CompiledRule(signature, sources)(*inputs.values())
    assert not torch.autograd.grad(y.sum(), inputs["beta"])[0].any()


def test_learned_start(sources):
    from fwgen.runtime.signature import StateSpec

    spec = delta_signature().states[0]
    signature = delta_signature(
        name="hand_learned", states=(StateSpec(spec.name, spec.dims, None),)
    )
    op = CompiledRule(signature, sources)
    inputs = draw(5, dtype=torch.float64, grad=True)
    start = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    got, want = (
        torch.autograd.grad(
            op(*inputs.values(), params={"W": start}, backend=b)[0].square().sum(),
            [start, *inputs.values()],
        )
        for b in ("cpu", "reference")
    )
    assert_equal(got, want, 1e-12)
    given = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    y, _ = op(*inputs.values(), params={"W": start}, initial_state=given)
    assert not torch.autograd.grad(y.sum(), start)[0].any()
    with pytest.raises(ArgumentError, match="W"):
        op(*inputs.values(), initial_state=given)


def test_second_derivative_is_refused(op):
    inputs = draw(3, grad=True)
    first = torch.autograd.grad(
        op(*inputs.values())[0].square().sum(), inputs["k"], create_graph=True
    )
    with pytest.raises(RuntimeError, match="fwgen"):
        first[0].sum().backward()


def test_saved_tensors_may_come_back_with_other_strides(op):
    inputs = draw(4, dtype=torch.float64, grad=True)
    plain = torch.autograd.grad(op(*inputs.values())[0].sum(), list(inputs.values()))

    def pack(t):
        return t.transpose(0, -1).contiguous().transpose(0, -1) if t.dim() > 1 else t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y, _ = op(*inputs.values())
    assert_equal(torch.autograd.grad(y.sum(), list(inputs.values())), plain, 0.0)


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_registered_operator(op, grad, final):
    inputs = draw(3, grad=grad)
    with Recorder() as record:
        op(*inputs.values(), output_final_state=final)
    ours = [(f, a) for f, a in record.calls if f.namespace == "fwgen"]
    assert [f.name() for f, _ in ours] == ["fwgen::hand_delta_01234567_forward"]
    fresh = [
        a.detach().clone().requires_grad_(grad) if isinstance(a, torch.Tensor) else a
        for a in ours[0][1]
    ]
    torch.library.opcheck(ours[0][0], fresh)


def test_registered_backward(op):
    inputs = draw(3, grad=True)
    with Recorder() as record:
        op(*inputs.values())[0].sum().backward()
    ours = [(f, a) for f, a in record.calls if f.name() == "fwgen::hand_delta_01234567_backward"]
    fresh = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in ours[0][1]]
    torch.library.opcheck(ours[0][0], fresh)


def test_both_roads_give_the_same(op):
    inputs = draw(6, grad=True)
    plain = op(*inputs.values())[0]
    with Recorder():
        other = op(*inputs.values())[0]
    weight = torch.randn_like(plain)
    got = [torch.autograd.grad(y, list(inputs.values()), weight) for y in (plain, other)]
    assert torch.equal(plain, other)
    assert all(torch.equal(a, b) for a, b in zip(*got, strict=True))


def test_second_derivative_is_refused_by_the_operator(op):
    inputs = draw(3, grad=True)
    with Recorder():
        y, _ = op(*inputs.values())
        first = torch.autograd.grad(y.square().sum(), inputs["k"], create_graph=True)
    with pytest.raises(RuntimeError, match="fwgen"):
        first[0].sum().backward()


def test_fullgraph(op):
    torch._dynamo.reset()

    def layer(inputs, initial):
        y, final = op(
            *(2 * t for t in inputs), initial_state={"W": initial}, output_final_state=True
        )
        return 0.5 * y, final

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for T in (5, 6, 9):
        tensors = [*draw(T, grad=True).values(), torch.randn(2, 4, 3, 5, requires_grad=True)]
        weights = [torch.ones(2, T, 4, 3), torch.ones(2, 4, 3, 5)]
        got, want = (
            gradients(lambda f=f, t=tensors: f(t[:-1], t[-1]), tensors, weights)
            for f in (compiled, layer)
        )
        assert_equal(got, want, 1e-6)


def test_fake_tensors(op):
    inputs = draw(6)
    with FakeTensorMode() as mode:
        y, final = op(*(mode.from_tensor(t) for t in inputs.values()), output_final_state=True)
    assert y.shape == (2, 6, 4, 3) and final["W"].shape == (2, 4, 3, 5)


def test_inference_mode_and_autocast(op):
    inputs = draw(6)
    want = op(*inputs.values())[0]
    with torch.inference_mode():
        assert torch.equal(op(*inputs.values())[0], want)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(op(*inputs.values())[0], want)


def test_plan_and_forms(op):
    inputs = list(draw(6).values())
    plan = op.plan(*inputs)
    assert (plan["backend"], plan["form"], plan["chunk_size"]) == ("cpu", "recurrent", None)
    assert plan["sizes"] == {"K": 5, "V": 3}
    assert op.plan(*inputs, backend="reference")["backend"] == "reference"
    with pytest.raises(UnsupportedError, match=r"chunk.*written by hand"):
        op(*inputs, form="chunk")


def test_triton_needs_a_gpu_and_float32(op, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UnsupportedError, match="triton"):
        op(*draw(2).values(), backend="triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UnsupportedError, match="float64"):
        op(*draw(2, dtype=torch.float64).values(), backend="triton")
    with pytest.raises(UnsupportedError, match="--target triton"):
        op(*draw(2).values(), backend="triton")


def test_init_state(op):
    state = op.init_state(2, 4, {"K": 5, "V": 3}, dtype=torch.float64)
    assert state["W"].shape == (2, 4, 3, 5) and state["W"].dtype == torch.float64
    with pytest.raises(ArgumentError, match="V"):
        op.init_state(2, 4, {"K": 5})


def test_copies_and_pickles(op):
    assert copy.deepcopy(op) is op
    again = pickle.loads(pickle.dumps(op))
    inputs = list(draw(3).values())
    assert torch.equal(again(*inputs)[0], op(*inputs)[0]) and again.rule == "the rule"
