"""The witnesses themselves, against closed formulas over a whole sequence."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import problems
from witnesses import FEATURE_MAPS, WITNESSES, maps

T = 9
EXACT = {"rtol": 1e-11, "atol": 1e-11}


def run(name: str, **changes: Tensor) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    """Inputs, output and final states of a witness from its own start state, one head."""
    w = WITNESSES[name]
    p = problems.draw(w, T, B=1, H=1, initial=False)
    p = replace(p, inputs={**p.inputs, **changes})
    y, final = problems.run_witness(w, p)
    inputs = {n: x[0, :, 0] for n, x in p.inputs.items()}
    heads = {n: x[0] for n, x in (p.params | p.buffers).items()}
    return inputs | heads, y[0, :, 0], {n: s[0, 0] for n, s in final.items()}


def causal(scores: Tensor) -> Tensor:
    return torch.tril(scores)


def test_sum_is_masked_attention_without_softmax():
    x, y, _ = run("sum")
    fq, fk = torch.vmap(maps.elu1)(x["q"]), torch.vmap(maps.elu1)(x["k"])
    torch.testing.assert_close(y, causal(fq @ fk.T) @ x["v"], **EXACT)


def test_linear_attention_is_a_weighted_mean_of_values():
    x, y, _ = run("linear_attention")
    fq, fk = torch.vmap(maps.elu1)(x["q"]), torch.vmap(maps.elu1)(x["k"])
    scores = causal(fq @ fk.T)
    want = scores @ x["v"] / (scores.sum(1, keepdim=True) + 1e-6)
    torch.testing.assert_close(y, want, **EXACT)


def test_simple_gla_weighs_pairs_by_the_decay_between_them():
    x, y, _ = run("simple_gla")
    total = torch.cumsum(x["g"], 0)
    scores = causal(x["q"] @ x["k"].T * torch.exp(total[:, None] - total[None, :]))
    torch.testing.assert_close(y, scores @ x["v"] / x["q"].shape[1] ** 0.5, **EXACT)


def test_gla_weighs_pairs_by_the_decay_of_each_channel():
    x, y, _ = run("gla")
    total = torch.cumsum(x["g"], 0)
    scores = torch.einsum("ic,jc,ijc->ij", x["q"], x["k"], torch.exp(total[:, None] - total))
    torch.testing.assert_close(y, causal(scores) @ x["v"] / x["q"].shape[1] ** 0.5, **EXACT)


def test_deltanet_solves_a_unit_triangular_system():
    x, y, _ = run("deltanet")
    q, k = torch.vmap(maps.l2norm)(x["q"]), torch.vmap(maps.l2norm)(x["k"])
    eye = torch.eye(T, dtype=k.dtype)
    lower = torch.tril(x["beta"][:, None] * (k @ k.T), -1)
    written = torch.linalg.solve(eye + lower, x["beta"][:, None] * x["v"])
    torch.testing.assert_close(y, causal(q @ k.T) @ written / q.shape[1] ** 0.5, **EXACT)


def test_delta_overwrites_a_key_that_comes_back():
    """With beta = 1 a second value under a unit key replaces the first."""
    w = WITNESSES["deltanet"]
    p = problems.draw(w, 2, B=1, H=1, initial=False)
    k = p.inputs["k"][:, :1].expand(1, 2, 1, -1)
    p = replace(p, inputs={**p.inputs, "k": k, "q": k, "beta": torch.ones(1, 2, 1).double()})
    y, _ = problems.run_witness(w, p)
    want = p.inputs["v"] / k.shape[-1] ** 0.5
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)  # l2norm keeps 1e-6 in its root


def test_rwkv4_is_the_naive_weighted_mean():
    x, y, _ = run("rwkv4")
    age = torch.arange(T)[:, None] - torch.arange(T)[None, :] - 1
    past = torch.tril(torch.ones(T, T, dtype=torch.bool), -1)[..., None]
    weights = torch.exp(age[..., None].clamp(min=0) * x["w"] + x["k"][None]) * past
    own = torch.exp(x["u"] + x["k"])
    above = (weights * x["v"][None]).sum(1) + own * x["v"]
    torch.testing.assert_close(y, above / (weights.sum(1) + own), **EXACT)


def test_mlstm_is_the_unstabilised_recurrence():
    x, y, _ = run("mlstm")
    W = torch.zeros(x["v"].shape[1], x["k"].shape[1], dtype=torch.float64)
    n = torch.zeros(x["k"].shape[1], dtype=torch.float64)
    for t in range(T):
        f, i = torch.sigmoid(x["f"][t]), torch.exp(x["i"][t])
        W = f * W + i * torch.outer(x["v"][t], x["k"][t])
        n = f * n + i * x["k"][t]
        q = x["q"][t] / x["q"].shape[1] ** 0.5
        want = W @ q / torch.clamp((n @ q).abs(), min=1)
        # The 1e-6 of the stabilised form is relative to its own, larger or smaller, scale.
        torch.testing.assert_close(y[t], want, rtol=1e-4, atol=1e-5)


def test_comba_with_its_own_key_is_gated_delta_without_a_map():
    w = WITNESSES["comba"]
    p = problems.draw(w, T, B=1, H=1)
    p = replace(p, inputs={**p.inputs, "p": p.inputs["k"]})
    y, final = problems.run_witness(w, p)
    W, want = p.initial["W"][0, 0], []
    for t in range(T):
        x = {n: v[0, t, 0] for n, v in p.inputs.items()}
        W = (
            torch.exp(x["g"])
            * W
            @ (torch.eye(len(x["k"])) - x["beta"] * torch.outer(x["k"], x["k"]))
        )
        W = W + x["beta"] * torch.outer(x["v"], x["k"])
        want.append(W @ x["q"] / len(x["q"]) ** 0.5)
    torch.testing.assert_close(y[0, :, 0], torch.stack(want), **EXACT)
    torch.testing.assert_close(final["W"][0, 0], W, **EXACT)


@pytest.mark.parametrize("name", sorted(FEATURE_MAPS))
def test_map_gives_as_many_features_as_it_says(name):
    m, sizes = FEATURE_MAPS[name], WITNESSES["sum"].sizes()
    draw = torch.Generator().manual_seed(1)

    def tensor(dims: str) -> Tensor:
        shape = [sizes[d] for d in dims.split()]
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    x = tensor("K")
    out = m.apply(x, *[tensor(d) for d in (*m.params.values(), *m.buffers.values())])
    assert out.shape == (m.features(sizes),)


@pytest.mark.parametrize("name", ["favor_positive", "favor_hyperbolic", "favor_trig"])
def test_random_features_estimate_the_softmax_kernel(name):
    draw = torch.Generator().manual_seed(0)
    omega = torch.randn(200_000, 4, generator=draw, dtype=torch.float64)
    x, y = 0.3 * torch.randn(2, 4, generator=draw, dtype=torch.float64)
    phi = FEATURE_MAPS[name].apply
    estimate = float(phi(x, omega) @ phi(y, omega))
    assert estimate == pytest.approx(float(torch.exp(x @ y)), rel=0.01)


def test_taylor2_is_the_second_order_of_exp():
    x, y = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    s = x @ y
    torch.testing.assert_close(maps.taylor2(x) @ maps.taylor2(y), 1 + s + s * s / 2, **EXACT)


def test_cos_position_weighs_by_the_distance():
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    p, r = torch.tensor(0.9, dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64)
    got = maps.cos_position(x, p) @ maps.cos_position(x, r)
    torch.testing.assert_close(got, (x @ x) * torch.cos(torch.pi / 2 * (p - r)), **EXACT)
