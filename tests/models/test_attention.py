"""The layer over compiled rules and the softmax baseline behind the same interface."""

from itertools import pairwise

import pytest
import torch

import fwgen
from fwgen.models import conventions
from fwgen.models.attention import FastWeightAttention, turn
from fwgen.models.mixer import AttentionConfig, RuleMixer, activate

SIZES = {"M": 6, "R": 2, "J": 3}
RULES = [*fwgen.list_rules(), "softmax"]
SOME = ["delta", "linear_attention", "softmax"]
EVERYTHING = {"short_conv": 3, "out_norm": True, "out_gate": True, "scale": 0.5}


def layer(rule, heads=2, **options):
    torch.manual_seed(0)
    sizes = {"heads": heads, "d_key": 4, "d_value": 4, "sizes": SIZES}
    return FastWeightAttention(rule, d_model=6, **sizes | options)


@pytest.mark.parametrize("rule", RULES)
def test_segments_and_steps_equal_one_long_segment(rule):
    attention, x = layer(rule, **EVERYTHING), torch.randn(2, 8, 6)
    whole, _ = attention(x)
    parts, state = [], None
    for start, end in ((0, 1), (1, 4), (4, 6)):
        part, state = attention(x[:, start:end], state, start, keep_state=True)
        parts.append(part)
    for t in (6, 7):
        y, state = attention.step(x[:, t], state, t)
        parts.append(y[:, None])
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_every_weight_receives_a_gradient(rule):
    attention = layer(rule, **EVERYTHING)
    y, _ = attention(torch.randn(2, 5, 6))
    y.square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


# These add without forgetting, which is their definition.
GROW = {"sum", "cheap_linear"}


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in GROW])
def test_fresh_layers_stay_bounded_over_long_texts(rule):
    attention = layer(rule, d_key=8, d_value=8)
    with torch.no_grad():
        y, _ = attention(torch.randn(1, 2000, 6))
    early, late = y[:, 20:120].abs().mean(), y[:, -100:].abs().mean()
    assert late < 100 * early, (early, late)


@pytest.mark.parametrize("rule", SOME)
def test_earlier_outputs_do_not_see_later_tokens(rule):
    attention, x = layer(rule, **EVERYTHING), torch.randn(1, 6, 6)
    changed = x.clone()
    changed[:, 4:] = torch.randn(1, 2, 6)
    assert torch.equal(attention(x)[0][:, :4], attention(changed)[0][:, :4])
    assert not torch.equal(attention(x)[0][:, 4:], attention(changed)[0][:, 4:])


@pytest.mark.parametrize("rule", SOME)
def test_the_last_output_alone_is_the_last_output(rule):
    mixer = layer(rule).mixer
    inputs = {name: torch.rand(2, 5, 2, *sizes) for name, sizes in mixer.inputs.items()}
    torch.testing.assert_close(mixer.last(inputs), mixer(inputs)[0][:, -1])


def test_softmax_attention_is_the_formula():
    mixer = layer("softmax").mixer
    inputs = {name: torch.randn(2, 5, 2, *sizes) for name, sizes in mixer.inputs.items()}
    q, k, v = (inputs[name].transpose(1, 2) for name in ("q", "k", "v"))
    scores = (q @ k.mT / 2).masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf)
    torch.testing.assert_close(mixer(inputs)[0], (scores.softmax(-1) @ v).transpose(1, 2))


def test_a_window_is_what_every_token_sees():
    """Of one segment, of carried ones, step by step, and of the last alone."""
    attention, x = layer("softmax", window=3), torch.randn(1, 9, 6)
    whole, _ = attention(x)
    ends = [attention(x[:, max(0, t - 2) : t + 1])[0][:, -1] for t in range(9)]
    torch.testing.assert_close(whole, torch.stack(ends, 1))
    first, state = attention(x[:, :6], keep_state=True)
    assert state["k"].shape[2] == 2
    y, state = attention(x[:, 6:8], state, 6, keep_state=True)
    y_t, _ = attention.step(x[:, 8], state, 8)
    torch.testing.assert_close(torch.cat([first, y, y_t[:, None]], 1), whole)
    inputs, _, _ = attention._inputs(x, None, 0)
    torch.testing.assert_close(attention.mixer.last(inputs), attention.mixer(inputs)[0][:, -1])


# --- ranges and starts


def test_gates_have_their_range_and_start():
    attention = layer("gated_delta", heads=3)
    inputs, _, _ = attention._inputs(100 * torch.randn(2, 50, 6), None, 0)
    assert 0 <= inputs["beta"].min() <= inputs["beta"].max() <= 1
    assert inputs["g"].max() <= 0
    inputs, _, _ = attention._inputs(torch.zeros(1, 1, 6), None, 0)
    rates = -inputs["g"].flatten()
    torch.testing.assert_close(rates, torch.logspace(-3, torch.tensor(0.5).log10().item(), 3))
    assert torch.equal(inputs["beta"], torch.full((1, 1, 3), 0.5))


def test_activations_can_be_asked_for():
    attention = layer("delta", activations={"beta": "2 sigmoid"})
    inputs, _, _ = attention._inputs(100 * torch.randn(2, 50, 6), None, 0)
    assert inputs["beta"].max() > 1.5
    with pytest.raises(fwgen.ArgumentError, match="found gamma=sigmoid"):
        layer("delta", activations={"gamma": "sigmoid"})


def test_every_name_in_the_tables_is_an_input_of_its_rule():
    """A table that names what does not exist would be ignored without a word."""
    shipped = {name: fwgen.load_rule(name) for name in fwgen.list_rules()}
    every = {name for rule in shipped.values() for name in rule.inputs}
    assert (conventions.INPUTS.keys() | conventions.STARTS.keys()) <= every
    for table in (conventions.INPUTS_OF, conventions.STARTS_OF, conventions.TIES):
        for rule, own in table.items():
            assert own.keys() <= shipped[rule].inputs.keys(), rule
    for table in (conventions.PARAMS_OF, conventions.RANGES_OF):
        for rule, own in table.items():
            assert own.keys() <= shipped[rule].params.keys(), rule
    for rule, own in conventions.INPUTS_OF.items():
        assert set(own.values()) <= conventions.ACTIVATIONS.keys(), rule


def test_a_gate_without_a_bias_is_only_one_that_is_meant_so():
    """Every input with a range has a start, or is a vector that is only normalised."""
    for name in fwgen.list_rules():
        mixer = RuleMixer(AttentionConfig(name, d_key=4, d_value=4, sizes=SIZES))
        for given, activation in mixer.activations.items():
            start = conventions.start_of(name, given, (1, *mixer.inputs[given]))
            if activation not in ("none", "l2norm", "tanh"):
                assert start is not None, (name, given)


def test_tied_erase_vectors_follow_their_key():
    mixer = layer("comba").mixer
    inputs = activate(mixer, {name: torch.randn(1, 1, 2, *s) for name, s in mixer.inputs.items()})
    share = inputs["p"] / inputs["k"]
    assert 0 < share.min() <= share.max() < 1


# --- random features, sizes, positions


@pytest.mark.parametrize(("redraw", "in_eval"), [(0, False), (1, False), (2, False), (1, True)])
def test_random_features_are_drawn_by_the_policy(redraw, in_eval):
    attention = layer("performer", redraw=redraw, redraw_in_eval=in_eval)
    drawn, x = [], torch.randn(1, 3, 6)
    name = f"fixed_{attention.mixer.fixed[0]}"
    for training in (True, True, True, False):
        attention.train(training)
        _, state = attention(x, keep_state=True)
        drawn.append(getattr(attention.mixer, name).clone())
        attention(x, state, 3)  # goes on with the features that made the state
        assert torch.equal(getattr(attention.mixer, name), drawn[-1])
    changed = [not torch.equal(a, b) for a, b in pairwise(drawn)]
    assert (
        changed
        == {
            (0, False): [False, False, False],
            (1, False): [True, True, False],
            (2, False): [False, True, False],
            (1, True): [True, True, True],
        }[redraw, in_eval]
    )


def test_an_unbound_dim_is_named():
    with pytest.raises(fwgen.ArgumentError, match=r"--dim t2r_M=64"):
        RuleMixer(AttentionConfig("linear_attention", {"phi": "t2r(x)"}, d_key=4, d_value=4))


def test_rotary_scores_depend_on_the_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 8)
    near = (turn(q, 7) * turn(k, 4)).sum()
    far = (turn(q, 1007) * turn(k, 1004)).sum()
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(turn(q, 5).norm(), q.norm())
    whole = turn(torch.ones(1, 6, 1, 8), 0)
    torch.testing.assert_close(whole[:, 4:], turn(torch.ones(1, 2, 1, 8), 4))


def test_rotary_needs_a_query_and_a_key():
    with pytest.raises(fwgen.ArgumentError, match="rotary: expected a query and a key"):
        layer("srwm", rotary=True)


def test_a_rule_is_rebuilt_from_its_text(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(fwgen.load_rule("delta").to_yaml().replace("name: delta", "name: mine"))
    config = AttentionConfig(str(path), {"phi": "elu1(x)"}, heads=2, d_key=4, d_value=4)
    alone = config.with_text()
    path.unlink()
    assert (alone.maps, alone.name) == ({}, "mine")
    torch.manual_seed(0)
    attention, x = FastWeightAttention(alone, d_model=6), torch.randn(1, 4, 6)
    torch.manual_seed(0)
    shipped = FastWeightAttention("delta", {"phi": "elu1(x)"}, d_model=6, heads=2, d_key=4)
    assert torch.equal(attention(x)[0], shipped(x)[0])
    own_map = FastWeightAttention("delta", d_model=6, heads=2, d_key=4)
    own_map.load_state_dict(shipped.state_dict())
    assert not torch.equal(own_map(x)[0], shipped(x)[0])


def test_half_precision_keeps_gates_and_states_in_float32():
    attention, x = layer("gated_delta"), torch.randn(2, 5, 6)
    with torch.autocast("cpu", torch.bfloat16):
        inputs, _, _ = attention._inputs(x, None, 0)
        y, state = attention(x, keep_state=True)
    assert inputs["q"].dtype == torch.bfloat16
    assert inputs["g"].dtype == torch.float32
    assert state["W"].dtype == torch.float32
    torch.testing.assert_close(y.float(), attention(x)[0], rtol=0.05, atol=0.05)
