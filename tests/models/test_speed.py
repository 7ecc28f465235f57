"""The table of whole models: what is measured, what is said of it."""

import json

import pytest
import torch

from fwgen.models import speed
from fwgen.models.lm import LMConfig
from fwgen.models.speed import Row, decoding, missed, model_of, state_after, table, training

SMALL = LMConfig(d_model=16, d_ff=32, layers=2)


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


@pytest.fixture(scope="module")
def models():
    return {rule: model_of(rule, SMALL) for rule in ("softmax", "gated_delta")}


def test_training_is_measured_by_steps_that_train(models):
    before = {rule: model.embedding.weight.detach().clone() for rule, model in models.items()}
    rows = training(models, 8, 1, tokens=32)
    assert [(row.kind, row.rule, row.tokens) for row in rows] == [
        ("train", "softmax", 8),
        ("train", "gated_delta", 8),
    ]
    softmax, rule = rows
    assert softmax.ratio == 1
    assert rule.ratio == pytest.approx(rule.rate / softmax.rate)
    for name, model in models.items():
        assert not torch.equal(model.embedding.weight, before[name])
        assert next(model.parameters()).grad.isfinite().all()


def test_decoding_counts_the_bytes_of_a_sequence(models):
    rows = decoding(models, (4, 40), 1, steps=3)
    sizes = {(row.rule, row.tokens): row.memory for row in rows}
    for context in (4, 40):
        assert sizes["softmax", context] == 2 * 2 * context * 16 * 4  # layers, k and v
        assert sizes["gated_delta", context] == 2 * 4 * 4 * 4 * 4  # layers, heads, V, K
    assert all(row.rate > 0 for row in rows)


def test_a_rule_has_read_its_context(models):
    """In pieces, and the whole of it; softmax has as many keys as the context has tokens."""
    model = models["gated_delta"].eval()
    torch.manual_seed(5)
    state = state_after(model, 4097)
    torch.manual_seed(5)
    pieces = [torch.randint(256, (1, n)) for n in (2048, 2048, 1)]
    with torch.no_grad():
        _, want = model.read(torch.cat(pieces, 1), None, 0)
    torch.testing.assert_close(state, want, rtol=1e-3, atol=1e-4)
    assert state_after(models["softmax"].eval(), 7)[1]["k"].shape == (1, 4, 7, 4)


def test_what_falls_short_is_told():
    def trains(tokens, ratio):
        return Row("train", "delta", tokens, 1.0, ratio, None)

    def decodes(tokens, rate, memory):
        return Row("decode", "sum", tokens, rate, None, memory)

    assert missed([trains(1024, 1.01), trains(4096, 2.41), trains(256, 0.5)]) == []
    assert missed([decodes(1, 10.0, 4), decodes(9, 9.0, 4)]) == []
    assert missed([trains(1024, 0.99)]) == ["delta at 1024: 0.99 x softmax, aim 1.0"]
    assert missed([trains(4096, 2.39)]) == ["delta at 4096: 2.39 x softmax, aim 2.4"]
    assert missed([decodes(1, 10.0, 4), decodes(9, 7.0, 4)]) == [
        "sum: decoding slows down from 1 to 9"
    ]
    assert missed([decodes(1, 10.0, 4), decodes(9, 10.0, 5)]) == [
        "sum: the state grows with the context"
    ]


def test_the_command(monkeypatch, capsys):
    monkeypatch.setattr(speed, "MODEL", SMALL)
    monkeypatch.setattr(speed, "TOKENS", 32)
    words = [
        "--rules",
        "softmax,sum",
        "--lengths",
        "16",
        "--contexts",
        "4",
        "--rounds",
        "1",
        "--threads",
        "1",
    ]
    assert speed.main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in document["rows"]] == ["train"] * 2 + ["decode"] * 2
    assert document["missed"] == []
    shown = table([Row(**row) for row in document["rows"]])
    assert len(shown.splitlines()) == 6
    assert speed.main([*words, "--lengths", ""]) == 0
    assert "train" not in capsys.readouterr().out
