"""Multi-query associative recall: its sequences, a short run, its commands, who recalls."""

from dataclasses import replace

import pytest
import torch

import fwgen
from fwgen.models import cli, mqar
from fwgen.models.mqar import PRESETS, UNASKED, MQARConfig, MQARTask, Part, Preset, draw


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("part", [Part(16, 4), Part(64, 5), Part(4, 1)])
def test_every_key_is_asked_once_and_its_value_expected_there(part, random):
    vocab, P = 32, part.pairs
    tokens, targets = draw(part, vocab, 50, generator(), 0.01, random)
    assert tokens.shape == targets.shape == (50, part.length)
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        keys, values = row[0 : 2 * P : 2], row[1 : 2 * P : 2]
        assert len(set(keys)) == len(set(values)) == P
        assert all(1 <= key < 16 for key in keys)
        assert all(16 <= value < 32 for value in values)
        asked = [t for t, value in enumerate(target) if value != UNASKED]
        assert all(t >= 2 * P and t % 2 == 0 for t in asked)
        said = dict(zip(keys, values, strict=True))
        assert sorted(row[t] for t in asked) == sorted(keys)
        assert all(target[t] == said[row[t]] for t in asked)
        rest = [token for t, token in enumerate(row) if t >= 2 * P and t not in asked]
        assert random or not any(rest)
    assert not random or part.length == 4 or len(set(tokens[:, -1].tolist())) > 5


def gaps_of(power):
    """How often a lone query stands at each of 8 gaps, in 4000 sequences."""
    _, targets = draw(Part(18, 1), 32, 4000, generator(), power, random=True)
    return torch.bincount((targets != UNASKED).int().argmax(1) // 2 - 1, minlength=8) / 4000


def test_gaps_follow_the_power_law():
    for power in (0.01, 1.0):
        expected = torch.arange(1, 9) ** (power - 1)
        expected /= expected.sum()
        assert (gaps_of(power) - expected).abs().max() < 0.04  # five standard deviations


def test_the_generator_alone_decides_the_sequences():
    first, again, other = (draw(Part(32, 4), 64, 8, generator(s), 0.01, True) for s in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


TINY = PRESETS["tiny"]


def preset(rule, training=TINY.training, **others):
    attention = replace(TINY.model.attention, rule=rule)
    model = replace(TINY.model, attention=attention, d_model=16, d_ff=16)
    return Preset(model, replace(TINY.run, **others), training)


def test_held_out_sequences_are_the_same_for_every_rule_and_seed():
    tasks = [MQARTask(preset(r, seed=s).model, preset(r, seed=s).run)
             for r, s in (("delta", 1), ("softmax", 2))]  # fmt: skip
    for one, other in zip(*(task.held_out for task in tasks), strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])
    own = tasks[0]._draw(Part(32, 4), 20, tasks[0].generators["train"])
    assert not torch.equal(own[0], tasks[0].held_out[1][1][:20])


def test_an_answer_depends_on_nothing_behind_its_question():
    task = MQARTask(preset("delta").model, TINY.run)
    tokens, _ = task._draw(Part(32, 4), 2, generator())
    changed = tokens.clone()
    changed[:, 20:] = 5
    with torch.no_grad():
        features = [task.model.read(t, None, 0, keep_state=False)[0] for t in (tokens, changed)]
    torch.testing.assert_close(features[0][:, :20], features[1][:, :20])
    assert not torch.allclose(features[0][:, 20:], features[1][:, 20:])


def test_figures_are_means_over_the_queries_of_every_kind():
    task = MQARTask(preset("softmax").model, replace(TINY.run, eval_batch=50))
    task._nll = lambda tokens, targets: (
        torch.full(((targets != UNASKED).sum(),), float((targets[0] != UNASKED).sum())),
        torch.arange((targets != UNASKED).sum()) % 2 == 0,
    )
    figures = task.evaluate()
    assert (figures["loss_2"], figures["loss_4"], figures["loss"]) == (2.0, 4.0, 3.0)
    assert figures["accuracy_2"] == figures["accuracy_4"] == figures["accuracy"] == 0.5


def test_a_short_run_learns():
    training = replace(TINY.training, steps=100, eval_every=20, warmup=5)
    history = mqar.run(preset("softmax", training, vocab=32, eval_batch=50))["history"]
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]
    assert history[-1]["accuracy_2"] > 2 / 16  # better than any of the values


def test_train_and_plot_from_the_command_line(tmp_path, capsys):
    words = "train mqar --preset tiny --rule delta --d-model 8 --steps 4 --eval-every 2 --vocab 34"
    words += " --parts 16:2:3,32:8 --tests 16:2,32:8 --batch 4 --eval-batch 4"
    for seed in ("1", "2"):
        out = str(tmp_path / f"run{seed}")
        assert cli.main([*words.split(), "--seed", seed, "--out", out]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-4:] == ["2", "pairs", "8", "pairs"]
    picture = tmp_path / "mqar.png"
    assert cli.main(["plot", str(tmp_path), "-o", str(picture)]) == 0
    line = capsys.readouterr().out.splitlines()[2].split()
    assert (line[0], line[3]) == ("delta", "2")  # two seeds in one line
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--preset huge", "preset"),
        ("--parts 64", "--parts: expected LENGTH:PAIRS, got '64'"),
        ("--parts a:4", "--parts: expected a whole number"),
        ("--parts 63:4", "length: expected an even number"),
        ("--parts 64:17", "at least 4 * pairs = 68"),
        ("--parts 64:4:0", "train: expected a weight above 0"),
        ("--parts 64:4:nan", "weight"),
        ("--tests 64:4,128:4", "test: expected every number of pairs once"),
        ("--vocab 20", "vocab: expected at least 66, got 20"),
        ("--power 0", "power"),
        ("--batch 0", "batch"),
        ("--rule performer", "--dim favor_positive_M=64"),
        ("--steps 0", "steps"),
        ("--resume", "found none"),
    ],
)
def test_wrong_usage_is_told_in_a_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "mqar", *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_wrong_settings_are_refused():
    for wrong in ({"train": ()}, {"test": ()}, {"power": 2.0}):
        with pytest.raises(fwgen.ArgumentError, match=next(iter(wrong))):
            MQARConfig(**wrong)
