"""Work and traffic against counts by hand."""

from __future__ import annotations

import pytest

from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.emit.costs import bytes_backward, bytes_forward, flops, flops_backward, state_elements
from fwgen.ir.dims import Dim
from fwgen.ir.nodes import Backward
from fwgen.language import list_rules, load_rule, lower

K, V, D, ONE = Dim.of("K"), Dim.of("V"), Dim.of("D"), Dim.of(1)

# Forward: a read and a write take 2 K V each (a product and a sum per element), a decay K V, a
# decayed write 3 K V. Backward: the gradient of a read goes to the state and to the query, that of
# a write to value and key: twice the forward. The rest is counted line by line.
BY_HAND = {
    # phi(x) = elu(x) + 1 and its derivative, times the gradient: 2 K each, for k and q
    "sum": (K * V * 4 + K * 4, K * V * 8 + K * 4),
    # 3 K V decayed write, 2 K V read, exp: K; y: V
    "gla": (K * V * 5 + K + V, K * V * 11 + K + V),
    # read a, 3 K V + 2 K V (second write), read r; exp: K
    "rwkv7": (K * V * 9 + K, K * V * 19 + K),
    # two reads and a write; unit vectors: 2 K for the sum of squares, add and root, K to scale
    "deltanet": (K * V * 6 + K * 6 + V * 3 + ONE * 4, K * V * 12 + K * 12 + V * 6 + ONE * 8),
}


def backward(name: str) -> Backward:
    return differentiate(hoist(lower(load_rule(name))))


@pytest.mark.parametrize("name", BY_HAND)
def test_flops(name: str) -> None:
    made = backward(name)
    forward, adjoint = BY_HAND[name]
    assert flops(made.forward.statements) == forward
    assert flops_backward(made) == adjoint


@pytest.mark.parametrize("name", list_rules())
def test_the_backward_is_one_to_three_times_the_forward(name: str) -> None:
    """For large sizes: a product has two gradients of its own cost; other things cost more."""
    made = backward(name)
    names = {n for a in made.forward.arrays for dim in a.dims for n in dim.names}
    sizes = dict.fromkeys(names, 1000)
    ratio = flops_backward(made).evaluate(sizes) / flops(made.forward.statements).evaluate(sizes)
    assert 1.0 < ratio <= 3.0


def test_bytes() -> None:
    made = backward("deltanet")
    assert bytes_forward(made.forward) == K * 8 + V * 4 + ONE * 4 + V * 4
    assert bytes_backward(made) == K * 16 + V * 8 + ONE * 8 + V * 4
    assert state_elements(made.forward) == K * V
    assert state_elements(lower(load_rule("srwm"))) == D * D * 3 + D * 4


def test_what_holds_for_a_whole_call_is_free() -> None:
    """`rsqrt(K)` is one number per call, not one per token."""
    made = backward("retnet")
    text = str(flops(made.forward.statements))
    assert text == "5*K*V + V + 1", text
