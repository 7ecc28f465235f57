"""The call inside PyTorch: registered operators, compiled graphs, checkpoints, DDP, threads."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import problems
from contract_rules import NAMES, PACKED, compiled, packed_problem, result, witness
from fwgen.errors import ArgumentError

THOROUGH = ("gated_delta", "everything")
"""Rules whose operators are checked for every kind of call."""


class Recorder(TorchDispatchMode):
    """The calls of operators of ours, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "fwgen":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def flat(p: problems.Problem) -> tuple[list[torch.Tensor], Callable[..., problems.Problem]]:
    """All tensors of a call in a row, and the problem that such a row stands for."""
    groups = ("inputs", "params", "buffers", "initial")
    places = [(g, n) for g in groups for n in getattr(p, g) or {}]

    def back(*tensors: torch.Tensor) -> problems.Problem:
        changed: dict[str, dict] = {g: {} for g in groups if getattr(p, g) is not None}
        for (group, name), tensor in zip(places, tensors, strict=True):
            changed[group][name] = tensor
        return replace(p, **changed)

    return [getattr(p, g)[n] for g, n in places], back


def through(p: problems.Problem, wrap: Callable, name: str, **options) -> dict[str, torch.Tensor]:
    """Results and gradients where `wrap(*tensors)` stands for the call of `call(*tensors)`."""

    op = compiled(name)

    def run(q: problems.Problem):
        tensors, back = flat(q)

        def call(*given: torch.Tensor):
            y, final = problems.run_op(op, back(*given), **options)
            return y, *final.values()

        y, *finals = wrap(call)(*tensors)
        return y, dict(zip(witness(name).states, finals, strict=True))

    return problems.collect(p, run)


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert set(got) == set(want)
    for n in want:
        assert torch.equal(got[n], want[n]), n


def kinds(name: str) -> list[tuple[problems.Problem, dict]]:
    """Rows, mixed types, and packed sequences with positions of their own."""
    w = witness(name)
    rows = problems.draw(w, 7).to(torch.float32)
    first = next(iter(rows.inputs))
    mixed = {**rows.inputs, first: rows.inputs[first].bfloat16()}
    weights = {**rows.weights, "y": rows.weights["y"].bfloat16()}
    packed = replace(packed_problem(w, PACKED).to(torch.float32), position=None)
    at = torch.arange(len(PACKED) - 1)
    return [
        (rows, {}),
        (replace(rows, inputs=mixed, weights=weights), {}),
        (packed, {"cu_seqlens": torch.tensor(PACKED, dtype=torch.int32), "position": at}),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    """Both operators, with and without gradients and final states: schema, fake and autograd."""
    for p, options in kinds(name) if name in THOROUGH else kinds(name)[:1]:
        q = p.map(lambda t: t.clone().requires_grad_(t.is_floating_point()))
        with Recorder() as record:
            y, final = problems.run_op(compiled(name), q, **options)
            (y.sum() + sum(t.sum() for t in final.values())).backward()
            compiled(name)(*p.inputs.values(), params=p.params, buffers=p.buffers, **options)
        names = [func.name() for func, _ in record.calls]
        stem = rf"fwgen::{name}_[0-9a-f]{{8}}_"
        assert all(re.fullmatch(stem + "(forward|backward)", n) for n in names), names
        assert len(set(names)) == 2 and len(names) == 3
        for func, args in record.calls:
            asks = func.name().endswith("forward") and any(
                isinstance(a, torch.Tensor) and a.requires_grad for a in args
            )
            fresh = [
                a.detach().clone().requires_grad_(asks and a.is_floating_point())
                if isinstance(a, torch.Tensor)
                else a
                for a in args
            ]
            torch.library.opcheck(func, fresh)


@pytest.mark.parametrize("name", NAMES)
def test_full_graph(name):
    """One graph without breaks, for several lengths, types and packed sequences: the same bits."""
    torch._dynamo.reset()
    for p, options in kinds(name):

        def whole(call, options=options):
            return torch.compile(call, fullgraph=True, backend="aot_eager")

        assert_same(through(p, whole, name, **options), result(name, p, **options))


@pytest.mark.parametrize("name", ["gated_delta", "everything"])
def test_one_graph_for_many_lengths(name):
    """Dynamic shapes: the second length makes a graph that serves all later ones."""
    torch._dynamo.reset()
    op, w = compiled(name), witness(name)
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    tensors, back = flat(problems.draw(w, 3))

    def layer(*given: torch.Tensor):
        return problems.run_op(op, back(*given))[0] * 2

    wrapped = torch.compile(layer, fullgraph=True, backend=backend)
    for T in (3, 5, 9, 17, 40):
        p = problems.draw(w, T)
        tensors, _ = flat(p)
        assert torch.equal(wrapped(*tensors), problems.run_op(op, p)[0] * 2)
    assert len(made) <= 2


def test_inductor():
    """The default compiler, around the call and fused with what surrounds it."""
    torch._dynamo.reset()
    op, p = compiled("gated_delta"), problems.draw(witness("gated_delta"), 9).to(torch.float32)
    tensors, back = flat(p)

    def layer(*given: torch.Tensor):
        y, final = problems.run_op(op, back(*(2 * t for t in given)))
        return torch.tanh(y), final["W"]

    leaves = [t.clone().requires_grad_() for t in tensors]
    found = []
    for f in (layer, torch.compile(layer, fullgraph=True)):
        y, final = f(*leaves)
        loss = (y * p.weights["y"]).sum() + (final * p.weights["final.W"]).sum()
        found.append([y, final, *torch.autograd.grad(loss, leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_fake_tensors(name):
    """Shapes and types of every result without a kernel."""
    for p, options in kinds(name):
        want = problems.run_op(compiled(name), p, **options)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            q = p.map(mode.from_tensor)
            y, final = problems.run_op(compiled(name), q, **options)
        assert y.shape == want[0].shape and y.dtype == want[0].dtype
        for n, tensor in want[1].items():
            assert final[n].shape == tensor.shape and final[n].dtype == tensor.dtype


@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
@pytest.mark.parametrize("name", NAMES)
def test_checkpoint(name, reentrant):
    """Run again in the backward: the same bits."""
    op = compiled(name)
    for p, options in kinds(name):
        want = result(name, p, **options)
        q = p.map(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()))
        tensors, back = flat(q)

        def call(*given: torch.Tensor, back=back, options=options):
            y, final = problems.run_op(op, back(*given), **options)
            return y, *final.values()

        names = [f"final.{n}" for n in witness(name).states]
        y, *finals = checkpoint(call, *tensors, use_reentrant=reentrant)
        results = {"y": y} | dict(zip(names, finals, strict=True))
        torch.autograd.backward([*results.values()], [p.weights[n] for n in results])
        got = {n: t.detach() for n, t in results.items()} | {
            n: t.grad for n, t in q.leaves().items()
        }
        assert_same({n: t.double() for n, t in got.items()}, want)


@pytest.mark.parametrize("name", NAMES)
def test_inference_mode(name):
    for p, options in kinds(name):
        want, _ = problems.run_op(compiled(name), p, **options)
        with torch.inference_mode():
            y, _ = problems.run_op(compiled(name), p, **options)
        assert torch.equal(y, want) and y.is_inference()


@pytest.mark.parametrize("name", ["gated_delta", "everything"])
def test_python_threads(name):
    """Several threads at once, each with a problem of its own."""
    drawn = [problems.draw(witness(name), 30, seed=s).to(torch.float32) for s in range(4)]
    want = [result(name, p) for p in drawn]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda p: result(name, p), drawn * 3))
    for one, other in zip(got, want * 3, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_bad_boundaries_in_a_graph(name):
    """Boundaries are judged when a compiled graph runs on the CPU, never read past the end."""
    torch._dynamo.reset()
    op, p = compiled(name), packed_problem(witness(name), [0, 4, 9]).to(torch.float32)
    tensors, back = flat(replace(p, initial=None))

    def layer(bounds, *given):
        return problems.run_op(op, back(*given), cu_seqlens=bounds)[0]

    wrapped = torch.compile(layer, fullgraph=True, backend="aot_eager")
    wrapped(torch.tensor([0, 4, 9]), *tensors)
    for bad in ([0, 10, 9], [0, 4, 2**40], [-(2**40), 4, 9], [1, 4, 9]):
        with pytest.raises(ArgumentError, match="cu_seqlens"):
            wrapped(torch.tensor(bad), *tensors)


class Layer(torch.nn.Module):
    """Params of a rule as a module."""

    def __init__(self, name: str, p: problems.Problem) -> None:
        super().__init__()
        self.name = name
        self.held = torch.nn.ParameterDict({n: t.clone() for n, t in p.params.items()})
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, p: problems.Problem) -> torch.Tensor:
        inputs = {n: t * self.scale if t.is_floating_point() else t for n, t in p.inputs.items()}
        q = replace(p, inputs=inputs, params=dict(self.held.items()))
        return problems.run_op(compiled(self.name), q)[0]


@pytest.fixture
def one_process(tmp_path):
    """A process group of this process alone."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["mamba2", "recurrent_delta", "everything"])
def test_distributed_data_parallel(name, one_process):
    """Hooks on params fire; gradients are those of the bare module."""
    p = problems.draw(witness(name), 6)
    bare = Layer(name, p)
    wrapped = torch.nn.parallel.DistributedDataParallel(Layer(name, p))
    for module in (bare, wrapped):
        (module(p) * p.weights["y"]).sum().backward()
    pairs = zip(bare.parameters(), wrapped.module.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)
