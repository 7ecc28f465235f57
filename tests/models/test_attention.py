"""The layer over compiled rules and the softmax baseline behind the same interface."""

import pytest
import torch

import fwgen
from fwgen.models.attention import FastWeightAttention
from fwgen.models.mixer import AttentionConfig, RuleMixer

RULES = ["delta", "linear_attention", "softmax"]


def layer(rule, heads=2):
    torch.manual_seed(0)
    return FastWeightAttention(rule, d_model=6, heads=heads, d_key=4, d_value=3)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cut", [1, 4])
def test_carried_state_equals_one_long_segment(rule, cut):
    attention, x = layer(rule), torch.randn(2, 7, 6)
    whole, _ = attention(x)
    first, state = attention(x[:, :cut], keep_state=True)
    rest, _ = attention(x[:, cut:], state, position=cut)
    torch.testing.assert_close(torch.cat([first, rest], 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_earlier_outputs_do_not_see_later_tokens(rule):
    attention, x = layer(rule), torch.randn(1, 6, 6)
    changed = x.clone()
    changed[:, 4:] = torch.randn(1, 2, 6)
    assert torch.equal(attention(x)[0][:, :4], attention(changed)[0][:, :4])
    assert not torch.equal(attention(x)[0][:, 4:], attention(changed)[0][:, 4:])


@pytest.mark.parametrize("rule", RULES)
def test_every_weight_receives_a_gradient(rule):
    attention = layer(rule)
    y, _ = attention(torch.randn(2, 5, 6))
    y.square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("rule", RULES)
def test_the_last_output_alone_is_the_last_output(rule):
    attention = layer(rule)
    mixer = attention.mixer
    inputs = {name: torch.rand(2, 5, 2, *sizes) for name, sizes in mixer.inputs.items()}
    torch.testing.assert_close(mixer.last(inputs), mixer(inputs)[0][:, -1])


def test_an_unbound_dim_is_named():
    with pytest.raises(fwgen.ArgumentError, match=r"--dim t2r_M=64"):
        RuleMixer(AttentionConfig("linear_attention", {"phi": "t2r(x)"}))
