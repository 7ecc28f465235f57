"""Types and layouts: halves and mixtures, flags, any strides, autocast."""

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import problems
from contract_rules import (
    NAMES,
    PACKED,
    Intercepted,
    compiled,
    golden,
    packed_problem,
    result,
    witness,
)
from fwgen.errors import ArgumentError

HALVES = [torch.bfloat16, torch.float16]


def groups(p: problems.Problem) -> list[tuple[str, str]]:
    """(group, name) of every floating tensor that may be of a half type."""
    named = [("inputs", n) for n, t in p.inputs.items() if t.is_floating_point()]
    return [*named, *(("params", n) for n in p.params), *(("buffers", n) for n in p.buffers)]


def typed(p: problems.Problem, dtypes: dict[tuple[str, str], torch.dtype]) -> problems.Problem:
    """The problem in float32, some tensors in other types; y's weights in the first input's."""
    p = p.to(torch.float32)
    for (group, name), dtype in dtypes.items():
        held = getattr(p, group)
        p = replace(p, **{group: {**held, name: held[name].to(dtype)}})
    first = next(iter(p.inputs.values())).dtype
    return replace(p, weights={**p.weights, "y": p.weights["y"].to(first)})


def mixtures(p: problems.Problem, half: torch.dtype) -> list[dict]:
    """All half; only the first input; all but it; every second tensor."""
    every = groups(p)
    return [dict.fromkeys(part, half) for part in (every, every[:1], every[1:], every[::2])]


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_half_and_mixed_types(name, half, poisoned):
    """Compute and states are float32: against the loop on the rounded tensors, only the rounding of
    results is lost; y has the first input's type, each gradient its tensor's."""
    w = witness(name)
    drawn = problems.draw(w, 9)
    eps = torch.finfo(half).eps
    for dtypes in mixtures(drawn, half):
        p = typed(drawn, dtypes)
        want = golden(w, p)
        near = problems.collect(p.to(torch.float32), lambda q: problems.run_witness(w, q))
        q = p.map(lambda t: t.detach().clone())
        leaves = q.leaves()
        for leaf in leaves.values():
            leaf.requires_grad_()
        y, final = problems.run_op(compiled(name), q)
        assert y.dtype == next(iter(p.inputs.values())).dtype
        assert all(t.dtype == torch.float32 for t in final.values())
        results = [y, *final.values()]
        seeds = [p.weights["y"], *(p.weights[f"final.{n}"] for n in final)]
        found = torch.autograd.grad(results, list(leaves.values()), seeds)
        got = {"y": y} | {f"final.{n}": t for n, t in final.items()}
        got |= dict(zip(leaves, found, strict=True))
        assert set(got) == set(want)
        for n, value in got.items():
            if n in leaves:
                assert value.dtype == leaves[n].dtype, n
            kept = 0.0 if value.dtype == torch.float32 else eps * float(want[n].abs().max())
            allowed = problems.allowance(want[n], near[n], torch.float32) + kept
            problems.assert_close(n, value.detach().double(), want[n], allowed)


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int32, torch.int64], ids=str)
def test_flags_of_any_kind(kind):
    """What only conditions read may be whole or bool, with the bits of a floating flag."""
    p = problems.draw(witness("everything"), 8).to(torch.float32)
    flags = [p.inputs["flag"].to(t) for t in (kind, torch.float32, torch.bfloat16)]
    ones = [replace(p, inputs={**p.inputs, "flag": flag}) for flag in flags]
    got = [result("everything", one) for one in ones]
    assert "d.flag" not in got[0] and not got[1]["d.flag"].any()
    for n, value in got[0].items():
        assert torch.equal(value, got[1][n]) and torch.equal(value, got[2][n]), n


def refused(p: problems.Problem) -> list[tuple[str, problems.Problem]]:
    """(a name that the message has, a problem of types that do not go together)"""
    found = []
    for one, two in itertools.pairwise(groups(p)):
        mixed = {one: torch.bfloat16, two: torch.float16}
        found.append((f"{one[1]}|{two[1]}", typed(p, mixed)))
    for group, name in groups(p):
        for wrong in (torch.float64, torch.int32, torch.bool, torch.complex64):
            found.append((name, typed(p, {(group, name): wrong})))
    for name, tensor in (p.initial or {}).items():
        for wrong in (torch.float64, torch.bfloat16, torch.int64):
            found.append((name, replace(typed(p, {}), initial={name: tensor.to(wrong)})))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_types_that_do_not_go_together(name):
    for text, p in refused(problems.draw(witness(name), 2)):
        for backend in ("cpu", "reference"):
            with pytest.raises(ArgumentError, match=text):
                problems.run_op(compiled(name), p, backend=backend)


def head_first(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else t


def last_axis_slow(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(0, -1).contiguous().transpose(0, -1)


def between_nans(t: torch.Tensor) -> torch.Tensor:
    """A window with gaps along every axis."""
    if not t.is_floating_point():
        return t
    wide = t.new_full([2 * n + 2 for n in t.shape], float("nan"))
    view = wide[tuple(slice(1, 2 * n + 1, 2) for n in t.shape)]
    return view.copy_(t)


def backwards(t: torch.Tensor) -> torch.Tensor:
    """The bits of negated values, read as themselves."""
    return torch._neg_view(-t) if t.is_floating_point() else t


def reversed_heads(t: torch.Tensor) -> torch.Tensor:
    """Contiguous but for a first axis that was reordered."""
    order = torch.arange(t.shape[0] - 1, -1, -1)
    return t[order][order]


def offset(t: torch.Tensor) -> torch.Tensor:
    """At an address that no vector is aligned to."""
    flat = t.new_zeros(t.numel() + 1)
    return flat[1:].view(t.shape).copy_(t)


LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    head_first,
    last_axis_slow,
    between_nans,
    backwards,
    reversed_heads,
    offset,
]


def with_layout(name: str, p: problems.Problem, layout, road: str, **options) -> dict:
    """Results and gradients with every tensor of the call, seeds included, in another layout."""
    q = p.map(lambda t: layout(t.detach().clone()))
    leaves = q.leaves()
    for leaf in leaves.values():
        leaf.requires_grad_()
    with Intercepted() if road == "operator" else nullcontext():
        y, final = problems.run_op(compiled(name), q, **options)
        results = {"y": y} | {f"final.{n}": t for n, t in final.items()}
        seeds = [q.weights[n] for n in results]
        found = torch.autograd.grad([*results.values()], [*leaves.values()], seeds)
    return results | dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("road", ["plain", "operator"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_layouts(name, layout, road, poisoned):
    """Bits do not depend on strides: of inputs, params, buffers, states, incoming gradients."""
    w = witness(name)
    p = problems.draw(w, 9)
    want = result(name, p)
    for n, value in with_layout(name, p, layout, road).items():
        assert value.is_contiguous() or n in p.leaves(), n
        assert torch.equal(value.detach(), want[n]), n


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["gated_delta", "agalite"])
def test_layouts_of_packed_sequences(name, layout, poisoned):
    p = packed_problem(witness(name), PACKED)
    bounds = torch.tensor(PACKED)
    want = result(name, p, cu_seqlens=bounds)
    got = with_layout(name, p, layout, "plain", cu_seqlens=layout(bounds))
    for n, value in got.items():
        assert torch.equal(value.detach(), want[n]), n


@pytest.mark.parametrize("name", NAMES)
def test_expanded_inputs(name):
    """One head, one row or one token, expanded: strides of 0, and gradients of every place."""
    p = problems.draw(witness(name), 6)
    for axis in (0, 1, 2):
        narrow = {n: t.narrow(axis, 0, 1) for n, t in p.inputs.items()}
        wide = {n: t.expand(p.inputs[n].shape) for n, t in narrow.items()}
        copied = {n: t.contiguous() for n, t in wide.items()}
        got, want = (result(name, replace(p, inputs=held)) for held in (wide, copied))
        assert all(torch.equal(got[n], want[n]) for n in want)


@pytest.mark.parametrize("name", NAMES)
def test_expanded_gradients(name):
    """`.sum().backward()` sends gradients of stride 0."""
    p = problems.draw(witness(name), 7)
    ones = {n: torch.ones_like(t) for n, t in p.weights.items()}
    want = result(name, replace(p, weights=ones))
    expanded = {n: torch.ones((), dtype=t.dtype).expand(t.shape) for n, t in ones.items()}
    got = result(name, replace(p, weights=expanded))
    assert all(torch.equal(got[n], want[n]) for n in want)


@pytest.mark.parametrize("road", ["plain", "operator"])
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_autocast_changes_nothing(name, half, road):
    """Nothing is cast down: the bits of the call without it, gradients included."""
    drawn = problems.draw(witness(name), 9)
    for p in (drawn.to(torch.float32), typed(drawn, dict.fromkeys(groups(drawn)[::2], half))):
        want = result(name, p)

        def run(q: problems.Problem):
            cast = torch.autocast("cpu", dtype=half)
            with cast, Intercepted() if road == "operator" else nullcontext():
                return problems.run_op(compiled(name), q)

        with torch.autocast("cpu", dtype=half):
            got = problems.collect(p, run)
        assert all(torch.equal(got[n], want[n]) for n in want)
