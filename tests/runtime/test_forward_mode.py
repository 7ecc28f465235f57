"""Transforms that kernels cannot serve are refused; the reference that the refusal names serves."""

import pytest
import torch
from torch.autograd import forward_ad

import fwgen


def tensors() -> list[torch.Tensor]:
    return [torch.randn(1, 5, 1, n) for n in (4, 4, 3)]


def test_jvp_is_refused():
    q, k, v = tensors()
    op = fwgen.compile("sum")
    with pytest.raises(fwgen.UnsupportedError, match="forward-mode"):
        torch.func.jvp(lambda x: op(x, k, v)[0], (q,), (torch.ones_like(q),))


def test_dual_tensors_are_refused():
    q, k, v = tensors()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(fwgen.UnsupportedError, match="forward-mode"):
            fwgen.compile("sum")(dual, k, v)
        assert fwgen.compile("sum")(q, k, v)[0].isfinite().all()


def test_reference_serves_tangents():
    q, k, v = tensors()
    op, along = fwgen.compile("sum", maps={"phi": "x"}), torch.randn_like(q)
    _, tangent = torch.func.jvp(lambda x: op.reference(x, k, v)[0], (q,), (along,))
    torch.testing.assert_close(tangent, op(along, k, v)[0])  # linear in q
    with forward_ad.dual_level():
        dual = op.reference(forward_ad.make_dual(q, along), k, v)[0]
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, tangent)


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "around vmap"])
def test_functional_gradients_are_refused(inside):
    q, k, v = tensors()
    op = fwgen.compile("sum")

    def loss(call, x):
        if inside:
            return torch.vmap(lambda one: call(one, k, v)[0])(x[None]).sum()
        return call(x, k, v)[0].sum()

    with pytest.raises(fwgen.UnsupportedError, match=r"torch\.func"):
        torch.func.grad(lambda x: loss(op, x))(q)
    want = torch.func.grad(lambda x: loss(op.reference, x))(q)
    leaf = q.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(loss(op, leaf), leaf)[0], want)
