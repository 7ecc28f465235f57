"""Attention to another sequence: fixed-size memories of rules against what they must equal."""

import pytest
import torch

import fwgen
from fwgen.models.memory import MemoryAttention, reading_rule
from fwgen.models.mixer import AttentionConfig

SIZES = {"M": 6, "R": 2, "J": 3}
SOME = ["softmax", "linear_attention", "performer", "delta", "gated_delta"]
# The output of these is a state of the update itself: nothing is left to ask.
NO_QUERY = {"delta_delta", "delta_lstm", "delta_rnn", "elstm", "recurrent_delta"}
LENGTHS = torch.tensor([3, 7, 1])
REAL = torch.arange(7) < LENGTHS[:, None]  # [B, S]


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


def attention(rule, **options):
    torch.manual_seed(0)
    config = AttentionConfig(rule, heads=2, d_key=4, d_value=4, sizes=SIZES, **options)
    return MemoryAttention(config, 6)


def features():
    """Source [B, S, 6] and target [B, T, 6]."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(3, n, 6, generator=generator) for n in (7, 5))


def kernel(rule, q, k, omega):
    """The similarity of every query and key that the rule's features stand for."""
    if rule == "performer":
        q, k = ((x * 4**-0.25) for x in (q, k))
        q, k = (
            torch.exp(torch.einsum("bthk,hmk->bthm", x, omega) - x.square().sum(-1)[..., None] / 2)
            for x in (q, k)
        )
        return torch.einsum("bthm,bshm->bhts", q, k) / omega.shape[1]
    q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    return torch.einsum("bthk,bshk->bhts", q, k)


@pytest.mark.parametrize("rule", ["sum", "linear_attention", "performer"])
def test_an_additive_memory_is_attention_with_its_kernel_over_all_pairs(rule):
    """The parallel form: T x S similarities, no state."""
    layer, (source, x) = attention(rule), features()
    y = layer.mixer.read(layer.to_ask(x, layer.mixer), layer.write(source, REAL))
    inputs = layer.to_write(source, layer.mixer) | layer.to_ask(x, layer.mixer)
    weights = kernel(
        rule, inputs["q"], inputs["k"], getattr(layer.mixer, "fixed_favor_positive_omega", None)
    )
    weights = weights * REAL[:, None, None]
    expected = torch.einsum("bhts,bshv->bthv", weights, inputs["v"])
    if rule != "sum":
        expected = expected / (weights.sum(-1).transpose(1, 2)[..., None] + 1e-6)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["delta", "deltanet", "gated_delta"])
def test_a_memory_is_read_as_the_rule_reads_when_it_writes_nothing(rule):
    layer, (source, x) = attention(rule), features()
    memory = layer.write(source, REAL)
    asked = layer.to_ask(x, layer.mixer)
    y = layer.mixer.read(asked, memory)
    for t in range(x.shape[1]):
        token = {n: torch.randn(3, 2, *sizes) for n, sizes in layer.mixer.inputs.items()}
        token["q"] = asked["q"][:, t]
        token |= {n: torch.zeros(3, 2) for n in ("beta", "g") if n in token}
        expected, after = layer.mixer.step(token, memory)
        torch.testing.assert_close(y[:, t], expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(after["W"], memory["W"])


@pytest.mark.parametrize("rule", SOME)
def test_padding_is_not_written(rule):
    layer, (source, x) = attention(rule), features()
    y = layer.read(x, layer.write(source, REAL))
    changed = torch.where(REAL[..., None], source, 1e3)
    assert torch.equal(layer.read(x, layer.write(changed, REAL)), y)
    for b, length in enumerate(LENGTHS.tolist()):
        alone = layer.write(source[b : b + 1, :length], REAL[b : b + 1, :length])
        torch.testing.assert_close(y[b : b + 1], layer.read(x[b : b + 1], alone))


@pytest.mark.parametrize("rule", SOME)
def test_a_token_reads_alone_what_it_reads_among_others(rule):
    layer, (source, x) = attention(rule), features()
    memory = layer.write(source, REAL)
    y = layer.read(x, memory)
    for t in range(x.shape[1]):
        torch.testing.assert_close(layer.read(x[:, t : t + 1], memory), y[:, t : t + 1])


@pytest.mark.parametrize("rule", SOME)
def test_every_weight_receives_a_gradient(rule):
    layer, (source, x) = attention(rule, out_norm=True), features()
    layer.read(x, layer.write(source, REAL)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_gradients_are_those_of_the_parallel_form():
    layer, (source, x) = attention("linear_attention"), features()
    weights = [layer.to_write.project.weight, layer.to_ask.project.weight]
    direction = torch.randn(3, 5, 2, 4, generator=torch.Generator().manual_seed(2))
    y = layer.mixer.read(layer.to_ask(x, layer.mixer), layer.write(source, REAL))
    found = torch.autograd.grad((y * direction).sum(), weights)
    inputs = layer.to_write(source, layer.mixer) | layer.to_ask(x, layer.mixer)
    pairs = kernel("linear_attention", inputs["q"], inputs["k"], None) * REAL[:, None, None]
    y = torch.einsum("bhts,bshv->bthv", pairs, inputs["v"])
    y = y / (pairs.sum(-1).transpose(1, 2)[..., None] + 1e-6)
    expected = torch.autograd.grad((y * direction).sum(), weights)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_the_size_of_a_memory_is_that_of_the_rule_not_of_the_source():
    short, long = (torch.randn(1, n, 6) for n in (2, 50))
    for rule, fixed in (("delta", True), ("softmax", False)):
        layer = attention(rule)
        sizes = [
            sum(x.numel() for x in layer.write(source, source[..., 0] < 9).values())
            for source in (short, long)
        ]
        assert (sizes[0] == sizes[1]) is fixed


@pytest.mark.parametrize("rule", fwgen.list_rules())
def test_every_shipped_rule_serves_or_says_why_not(rule):
    if rule in NO_QUERY:
        with pytest.raises(fwgen.ArgumentError, match=f"memory: .* that of {rule} is"):
            attention(rule, backend="reference")
        return
    layer, (source, x) = attention(rule, backend="reference"), features()
    y = layer.read(x, layer.write(source, REAL))
    assert y.shape == x.shape
    assert y.isfinite().all()
    seen = torch.zeros(3, dtype=torch.bool)
    for change in (1, -1):  # the features of one word may be rectified to nothing
        changed = source.clone()
        changed[:, 0] += change
        read = layer.read(x, layer.write(changed, REAL))
        seen |= (read != y).flatten(1).any(1)
    assert seen.all(), "a sentence did not see its first word"
    assert not torch.equal(layer.read(x + 1, layer.write(source, REAL)), y)


def test_an_output_that_uses_a_part_of_the_update_is_refused(tmp_path):
    text = fwgen.load_rule("delta").to_yaml().replace("W @ phi(q)", "W @ phi(q) + W @ kf")
    (tmp_path / "odd.yaml").write_text(text)
    with pytest.raises(fwgen.ArgumentError, match="made of its states and a query"):
        attention(str(tmp_path / "odd.yaml"))
    positions = text.replace("W @ phi(q) + W @ kf", "where(t > 1, 1, 2) * W @ phi(q)")
    (tmp_path / "odd.yaml").write_text(positions)
    with pytest.raises(fwgen.ArgumentError, match="made of its states and a query"):
        attention(str(tmp_path / "odd.yaml"))


def test_options_of_self_attention_are_refused():
    with pytest.raises(fwgen.ArgumentError, match="are options of self-attention"):
        attention("delta", short_conv=3)


def test_the_reading_rule_is_a_rule(tmp_path):
    path = tmp_path / "read.yaml"
    path.write_text(reading_rule(fwgen.load_rule("linear_attention")))
    rule = fwgen.load_rule(path)
    assert list(rule.inputs) == ["q"]
    assert rule.states == fwgen.load_rule("linear_attention").states
    assert rule.output == fwgen.load_rule("linear_attention").output
