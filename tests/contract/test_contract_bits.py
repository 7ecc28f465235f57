"""Bits: equal calls, any number of threads, nothing from the future; and gates of any strength."""

from dataclasses import replace

import pytest
import torch

import fwgen
import problems
from contract_rules import NAMES, PACKED, compiled, packed_problem, result, witness
from witnesses import WITNESSES, Witness

DECAYED = {
    name: next(n for n in w.inputs if w.draw.get(n) == "decay")
    for name, w in WITNESSES.items()
    if {n for n in w.inputs if w.draw.get(n) == "decay"}
}
"""Shipped rules with a log-decay among their inputs, and its name."""


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert set(one) == set(two)
    for n in one:
        assert torch.equal(one[n], two[n]), n


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_threads(name, packed, threads, poisoned):
    """Outputs, states and gradients, those of shared tensors included."""
    w, options = witness(name), {}
    p = problems.draw(w, 37, B=5).to(torch.float32)
    if packed:
        p = packed_problem(w, PACKED).to(torch.float32)
        options["cu_seqlens"] = torch.tensor(PACKED)
    found = []
    for count in (1, 3, 3):
        threads(count)
        found.append(result(name, p, **options))
    for other in found[1:]:
        assert_same(found[0], other)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_comes_from_the_future(name):
    """Other tokens from P on, also huge ones: y before P, and its gradients there, keep their bits;
    no gradient arrives at P or later."""
    w, cut = witness(name), 19
    one, two = (problems.draw(w, 37, seed=s).to(torch.float32) for s in (1, 2))
    later = {
        n: torch.cat([t[:, :cut], two.inputs[n][:, cut:] * 3], 1) for n, t in one.inputs.items()
    }
    early = {n: t * 0 for n, t in one.weights.items()}
    early["y"][:, :cut] = one.weights["y"][:, :cut]
    a, b = (result(name, replace(one, inputs=i, weights=early)) for i in (one.inputs, later))
    for n in ("y", *(f"d.{i}" for i in w.inputs if f"d.{i}" in a)):
        assert torch.equal(a[n][:, :cut], b[n][:, :cut]), n
        assert n == "y" or not a[n][:, cut:].any(), f"{n}: from the future"


def with_gate(w: Witness, T: int, gate: str, levels: torch.Tensor, seed: int) -> problems.Problem:
    """A problem whose log-decays are drawn from a list."""
    p = problems.draw(w, T, H=2, seed=seed)
    shape = p.inputs[gate].shape
    drawn = torch.randint(len(levels), shape, generator=torch.Generator().manual_seed(seed))
    return replace(p, inputs={**p.inputs, gate: levels[drawn]})


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Root mean square of the error over that of the tensor."""
    return float((got - want).square().mean().sqrt() / want.square().mean().sqrt())


def compare(name: str, gate: str, p: problems.Problem, dtype: torch.dtype) -> None:
    """The ordinary tolerance for everything but the gate's gradient."""
    w, p = WITNESSES[name], p.to(dtype)
    want = problems.collect(p.to(torch.float64), lambda q: problems.run_witness(w, q))
    near = problems.collect(p.to(torch.float32), lambda q: problems.run_witness(w, q))
    got = result_of(name, p)
    key = f"d.{gate}"
    assert got[key].isfinite().all() and relative(got[key], want[key]) < 1e-4
    others = {n: t for n, t in got.items() if n != key}
    problems.compare(others, {n: want[n] for n in others}, {n: near[n] for n in others}, dtype)


def result_of(name: str, p: problems.Problem) -> dict[str, torch.Tensor]:
    return problems.collect(p, lambda q: problems.run_op(fwgen.compile(name), q))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", DECAYED)
def test_strong_and_weak_gates_mixed(name, dtype, poisoned):
    """Log-decays of 0, -0.01, -1, -20, -100 and -inf in any order."""
    levels = torch.tensor([0.0, -0.01, -1.0, -20.0, -100.0, -torch.inf], dtype=torch.float64)
    gate = DECAYED[name]
    compare(name, gate, with_gate(WITNESSES[name], 50, gate, levels, 5), dtype)


@pytest.mark.parametrize("level, allowed", [(-5.0, 1e-4), (-10.0, 1e-3), (-20.0, 1e-2)])
@pytest.mark.parametrize("name", DECAYED)
def test_gradient_of_a_strong_gate(name, level, allowed):
    """float32 against float64, relative over the tensor."""
    gate, w = DECAYED[name], WITNESSES[name]
    levels = level * torch.linspace(0.9, 1.1, 9, dtype=torch.float64)
    p = with_gate(w, 64, gate, levels, 6).to(torch.float32)
    want = problems.collect(p.to(torch.float64), lambda q: problems.run_witness(w, q))
    assert relative(result_of(name, p)[f"d.{gate}"], want[f"d.{gate}"]) < allowed


@pytest.mark.parametrize("name", NAMES)
def test_a_row_does_not_depend_on_its_neighbours(name):
    """The first row of two calls whose other rows differ."""
    w = witness(name)
    one, two = (problems.draw(w, 9, seed=s).to(torch.float32) for s in (1, 2))

    def mixed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a[:1], b[1:]])

    inputs = {n: mixed(t, two.inputs[n]) for n, t in one.inputs.items()}
    initial = one.initial and {n: mixed(t, (two.initial or {})[n]) for n, t in one.initial.items()}
    weights = {n: mixed(t, two.weights[n]) for n, t in one.weights.items()}
    other = replace(one, inputs=inputs, initial=initial, weights=weights)
    a, b = result(name, one), result(name, other)
    for n in (n for n in a if not n.startswith("d.params.")):
        assert torch.equal(a[n][:1], b[n][:1]), n


def test_compiled_once_per_content():
    assert compiled("gated_delta") is fwgen.compile("gated_delta")
    assert fwgen.compile("sum", maps={"phi": "x"}) is fwgen.compile("sum", maps={"phi": "x"})
    assert fwgen.compile("sum", maps={"phi": "x"}) is not fwgen.compile("sum")
