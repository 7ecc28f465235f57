"""The comparisons that other tests rest on fail when they should."""

import pytest
import torch

import problems
from witnesses import WITNESSES

ONE = torch.tensor([1.0, 2.0, -4.0], dtype=torch.float64)
DELTANET = WITNESSES["deltanet"]


def test_assert_close_accepts_an_error_within_the_allowance():
    problems.assert_close("x", ONE + 1e-9, ONE, 1e-8)


@pytest.mark.parametrize(
    "wrong",
    [
        ONE + 1e-7,
        torch.where(ONE > 1.5, torch.nan, ONE),
        torch.where(ONE > 1.5, torch.inf, ONE),
        ONE[:2],
        ONE[None],
    ],
    ids=["far", "nan", "inf", "short", "rank"],
)
def test_assert_close_raises(wrong):
    with pytest.raises(AssertionError, match="x"):
        problems.assert_close("x", wrong, ONE, 1e-8)


def test_allowance_of_float32_is_a_few_epsilons_when_eager_is_exact():
    eps = torch.finfo(torch.float32).eps
    assert problems.allowance(ONE, ONE, torch.float32) == pytest.approx(10 * 8 * eps * 4)


def test_allowance_is_no_larger_when_eager_overflowed():
    overflowed = torch.full_like(ONE, torch.nan)
    allowed = problems.allowance(ONE, overflowed, torch.float32)
    assert allowed == problems.allowance(ONE, ONE, torch.float32)


def test_compare_names_every_tensor_that_is_off():
    want = {"y": ONE, "d.q": ONE, "d.k": ONE}
    got = {"y": ONE, "d.q": ONE + 1, "d.k": ONE * torch.nan}
    with pytest.raises(AssertionError, match=r"d\.q: error(.|\n)*d\.k: not finite"):
        problems.compare(got, want, want, torch.float64)


def test_compare_raises_on_a_missing_tensor():
    want = {"y": ONE, "d.q": ONE}
    with pytest.raises(AssertionError, match=r"d\.q"):
        problems.compare({"y": ONE}, want, want, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("victim", ["y", "final.W", "d.q", "d.beta", "d.initial.W"])
def test_a_relative_error_of_a_hundredth_is_caught_in_every_tensor(victim, dtype):
    p = problems.draw(DELTANET, 7)
    want = problems.collect(p, lambda q: problems.run_witness(DELTANET, q))
    eager = problems.collect(p.to(torch.float32), lambda q: problems.run_witness(DELTANET, q))
    with pytest.raises(AssertionError, match=victim):
        problems.compare({**want, victim: want[victim] * 1.01}, want, eager, dtype)


def test_check_op_catches_an_op_that_ignores_the_initial_state():
    def forgetful(*inputs, initial_state, **options):
        zero = {n: s * 0 for n, s in initial_state.items()}
        p = problems.Problem(dict(zip(DELTANET.inputs, inputs, strict=True)), {}, {}, zero, {})
        return problems.run_witness(DELTANET, p)

    p = problems.draw(DELTANET, 3)
    with pytest.raises(AssertionError, match=r"y: error"):
        problems.check_op(forgetful, DELTANET, p, torch.float32)


def test_check_op_catches_a_read_beside_the_tensor():
    def beside(q, *rest, initial_state, **options):
        shifted = torch.as_strided(q, q.shape, q.stride(), q.storage_offset() + 1)
        inputs = dict(zip(DELTANET.inputs, (shifted, *rest), strict=True))
        return problems.run_witness(DELTANET, problems.Problem(inputs, {}, {}, initial_state, {}))

    with pytest.raises(AssertionError, match="not finite"):
        problems.check_op(beside, DELTANET, problems.draw(DELTANET, 3), torch.float32)


def test_check_band_catches_a_write_beside_the_tensor():
    view = problems.guarded(torch.ones(2, 3))
    problems.check_band("x", view)
    torch.as_strided(view, (1,), (1,), view.storage_offset() + view.numel()).fill_(0.0)
    with pytest.raises(AssertionError, match="x"):
        problems.check_band("x", view)


def test_uninitialised_memory_is_nan(poisoned):
    assert bool(torch.empty(5, 5).isnan().all())
