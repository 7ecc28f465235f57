"""Forward-mode differentiation is refused: no kernel carries tangents."""

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
