"""Gradients: through output and final states, alone or together, for any subset; and no others."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from test_contract_calls import empty_calls

import fwgen
import problems
from contract_rules import (
    NAMES,
    Intercepted,
    compiled,
    golden,
    packed_problem,
    result,
    with_sizes,
    witness,
)
from fwgen.errors import ArgumentError
from witnesses import WITNESSES

ROADS = ["plain", "operator"]


def call(name: str, road: str, p: problems.Problem, **options):
    if road == "operator":
        with Intercepted():
            return problems.run_op(compiled(name), p, **options)
    return problems.run_op(compiled(name), p, **options)


def leaf_copy(p: problems.Problem, names: set[str]) -> problems.Problem:
    """The same values; only the named leaves ask for gradients."""
    q = p.map(lambda t: t.detach().clone())
    for name, leaf in q.leaves().items():
        leaf.requires_grad_(name in names)
    return q


def backward(p: problems.Problem, outputs: dict[str, torch.Tensor], roots: set[str]) -> dict:
    """Gradients of a weighted sum of some results, by leaf; only those that arrived."""
    sum((outputs[n] * p.weights[n]).sum() for n in sorted(roots)).backward()
    return {n: t.grad for n, t in p.leaves().items() if t.grad is not None}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", NAMES)
def test_losses_of_every_result(name, road, poisoned):
    """y alone, each final state alone, all together: by the witness."""
    w = witness(name)
    p = problems.draw(w, 18)
    for chosen in [*({n} for n in p.weights), set(p.weights)]:
        none = {n: t if n in chosen else t * 0 for n, t in p.weights.items()}
        want = golden(w, replace(p, weights=none))
        q = leaf_copy(p, set(p.leaves()))
        y, final = call(name, road, q)
        got = backward(q, {"y": y} | {f"final.{n}": t for n, t in final.items()}, chosen)
        assert set(got) == set(q.leaves()), "every leaf gets a gradient, if only zeros"
        for n, g in got.items():
            bound = 1e-9 * float(want[n].abs().max()) + 1e-13
            problems.assert_close(f"{n} of {chosen}", g, want[n], bound)


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", NAMES)
def test_subsets_of_requires_grad(name, road, poisoned):
    """Each leaf alone, each pair, all but one: the same gradients, and none that nobody wants.

    Work space that a skipped part of the backward leaves alone holds NaN, not what was right.
    """
    p = problems.draw(witness(name), 18)
    full = result(name, p)
    nothing = p.map(lambda t: t * float("nan") if t.is_floating_point() else t)
    leaves = list(p.leaves())
    chosen = [{n} for n in leaves] + [set(leaves) - {n} for n in leaves]
    chosen += [set(pair) for pair in combinations(leaves, 2)]
    for names in chosen:
        q = leaf_copy(p, names)
        y, final = call(name, road, q)
        result(name, nothing)
        got = backward(q, {"y": y} | {f"final.{n}": t for n, t in final.items()}, set(p.weights))
        assert set(got) == names
        for n, g in got.items():
            problems.assert_close(n, g, full[n], 1e-11 * float(full[n].abs().max()) + 1e-14)


def processor_time(run: Callable[[], object]) -> float:
    """Seconds of this thread's processor, the least of several runs."""
    found = []
    for _ in range(7):
        start = time.thread_time()
        run()
        found.append(time.thread_time() - start)
    return min(found[1:])


@pytest.mark.parametrize("name", ["sum", "gla", "gated_delta"])
@pytest.mark.parametrize("leaf", ["q", "v", "state"])
def test_what_nobody_asks_for_costs_nothing(name, leaf, threads):
    """One pass over the states instead of two or three: well below the time of all gradients."""
    threads(1)
    op, w = fwgen.compile(name), with_sizes(WITNESSES[name], K=41, V=41)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        n: -torch.rand(1, 800, 2, *w.shape(dims), generator=generator) / 9
        for n, dims in w.inputs.items()
    }
    tensors["state"] = torch.rand(1, 2, *w.shape(w.states["W"]), generator=generator)

    def cost(names: set[str]) -> float:
        held = {n: t.clone().requires_grad_(n in names) for n, t in tensors.items()}
        y, _ = op(*(held[n] for n in w.inputs), initial_state=held["state"])
        asked, along = [held[n] for n in names], torch.ones_like(y)
        return processor_time(lambda: torch.autograd.grad(y, asked, along, retain_graph=True))

    for _ in range(4):  # a machine that does other things may spoil a measurement
        part, whole = cost({leaf}), cost(set(tensors))
        if part < 0.75 * whole:
            return
    pytest.fail(f"{leaf} alone took {part:.4f} s, everything {whole:.4f} s")


@pytest.mark.parametrize("name", NAMES)
def test_which_results_ask_for_gradients(name):
    """As many by kernels as by the loop, also without tokens; none where nothing asks."""
    w = witness(name)
    calls = {"one token": (problems.draw(w, 1, B=1, H=1), {}), **empty_calls(w)}
    for kind, (p, options) in calls.items():
        for names in [set(), *({n} for n in p.leaves()), set(p.leaves())]:
            for how in ({}, {"road": "operator"}, {"backend": "reference"}):
                q = leaf_copy(p, names)
                y, final = call(name, **{"road": "plain", "p": q, **how, **options})
                asking = [y.requires_grad, *(t.requires_grad for t in final.values())]
                assert asking == [bool(names)] * len(asking), f"{kind}, {names}, {how}"
        with torch.no_grad():
            y, final = call(name, "plain", q, **options)
        assert not any(t.requires_grad for t in (y, *final.values()))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("T", [0, 4])
def test_what_is_unused_gets_zeros(T, backend):
    """By kernels and by the loop: the gradient of y for an input that only the state reads."""
    p = problems.draw(witness("everything"), T)
    q = leaf_copy(p, set(p.leaves()))
    _, final = call("everything", "plain", q, backend=backend)
    got = backward(q, {"final.z": final["z"]}, {"final.z"})
    assert set(got) == set(q.leaves())
    for n in ("d.q", "d.v", "d.g", "d.params.W"):
        assert got[n].shape == q.leaves()[n].shape and not got[n].any()


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_are_refused(name, road):
    """With the name of what refuses; the first ones may still be asked for with create_graph."""
    p = problems.draw(witness(name), 5)
    want = result(name, p)
    q = leaf_copy(p, set(p.leaves()))
    y, final = call(name, road, q)
    results = {"y": y} | {f"final.{n}": t for n, t in final.items()}
    leaves = q.leaves()
    loss = sum((results[n] * p.weights[n]).sum() for n in results)
    found = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
    for n, g in zip(leaves, found, strict=True):
        problems.assert_close(n, g.detach(), want[n], 1e-11 * float(want[n].abs().max()) + 1e-14)
    for g in found:
        with pytest.raises(RuntimeError, match="fwgen"):
            torch.autograd.grad(g.square().sum(), list(leaves.values()), retain_graph=True)


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_of_the_reference(name):
    """What the refusal points at does have them: against differences of first ones."""
    w, T = witness(name), 3
    p = problems.draw(w, T, B=1, H=1)
    q = leaf_copy(p, set(p.leaves()))
    leaves = list(q.leaves().values())
    along = [torch.randn(t.shape, dtype=t.dtype) for t in leaves]

    def slope(*tensors: torch.Tensor) -> torch.Tensor:
        changed = dict(zip((t.data_ptr() for t in leaves), tensors, strict=True))
        r = q.map(lambda t: changed.get(t.data_ptr(), t))
        y, _ = problems.run_op(compiled(name), r, backend="reference")
        return (y * p.weights["y"]).sum()

    first = torch.autograd.grad(slope(*leaves), leaves, create_graph=True)
    directed = sum((g * d).sum() for g, d in zip(first, along, strict=True))
    second = torch.autograd.grad(directed, leaves, allow_unused=True)
    got = sum((g * d).sum() for g, d in zip(second, along, strict=True) if g is not None)
    h = 1e-4

    def at(x: float) -> float:
        return float(slope(*(t.detach() + x * d for t, d in zip(leaves, along, strict=True))))

    want = (at(h) - 2 * at(0.0) + at(-h)) / h**2
    assert abs(float(got) - want) <= 1e-4 * max(1.0, abs(want))


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_serves_twice(name, road):
    """What was kept survives the first backward, and the gradients have the same bits."""
    p = problems.draw(witness(name), 18)
    q = leaf_copy(p, set(p.leaves()))
    y, _ = call(name, road, q)
    leaves = list(q.leaves().values())
    one, two = (
        torch.autograd.grad((y * p.weights["y"]).sum(), leaves, retain_graph=True) for _ in "12"
    )
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_changed_inputs_are_noticed(name):
    """A tensor that is written to before the backward is an error, not a wrong gradient."""
    p = problems.draw(witness(name), 3)
    q = leaf_copy(p, set(p.leaves()))
    made = {n: t * 2 if t.is_floating_point() else t for n, t in q.inputs.items()}
    y, _ = problems.run_op(compiled(name), replace(q, inputs=made))
    next(iter(made.values())).detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", ["gated_delta", "recurrent_delta"])
def test_boundaries_that_change_behind_autograd(name, road):
    """They are judged again: a backward never leaves its tensors."""
    bounds = torch.tensor([0, 4, 9])
    p = packed_problem(witness(name), bounds.tolist())
    q = leaf_copy(p, set(p.leaves()))
    y, _ = call(name, road, q, cu_seqlens=bounds)
    bounds.data.copy_(torch.tensor([0, 2**40, 9]))
    with pytest.raises(ArgumentError, match="cu_seqlens"):
        y.sum().backward()
