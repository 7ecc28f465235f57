"""`fwgen eval` of translators and formal languages: the figures of the training come out again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import fwgen
from fwgen.models import cli, formal, formal_eval, nmt_eval, nmt_task
from fwgen.models.settings import TrainConfig
from fwgen.models.task import Task
from fwgen.models.train import train


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


@pytest.fixture(scope="module")
def parity(tmp_path_factory):
    """A run and its results."""
    out = tmp_path_factory.mktemp("parity") / "run"
    config = replace(formal.preset("parity"), eval_strings=40, longer=((21, 30), (31, 40)))
    return out, formal.run(config, replace(formal.TRAINING, steps=4, eval_every=2), out)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    out = tmp_path_factory.mktemp("numbers") / "run"
    preset = nmt_task.PRESETS["tiny"]
    preset = replace(
        preset,
        model=replace(preset.model, d_model=16, d_ff=32),
        training=replace(preset.training, steps=4, eval_every=2),
    )
    return out, nmt_task.run(Path("numbers"), preset, out)


def best(result):
    """The evaluation that the best checkpoint was written after."""
    (row,) = [row for row in result["history"] if row["step"] == result["best_step"]]
    return {name: value for name, value in row.items() if name not in ("step", "train_loss")}


def document(capsys, *arguments):
    assert cli.main(["eval", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_formal_language_is_judged_as_in_the_training(parity, capsys):
    out, result = parity
    found = document(capsys, out)
    step = result["best_step"]
    assert (found["task"], found["language"], found["step"]) == ("formal", "parity", step)
    assert found["rows"] == [pytest.approx(best(result))]


def test_a_formal_language_is_judged_on_other_lengths(parity, capsys):
    out, _ = parity
    (row,) = document(capsys, out, "--lengths", "3,50-60", "--strings", 9)["rows"]
    assert {"accuracy_3", "accuracy_50-60"} <= row.keys()
    assert not any(name.startswith("accuracy_2") for name in row)
    assert row["accuracy_3"] * 8 == pytest.approx(round(row["accuracy_3"] * 8))  # of 2 ** 3
    found = formal_eval.load(out)
    assert formal_eval.evaluate(found, ((3, 3), (50, 60)), 9) == pytest.approx(row)


def test_a_translator_is_judged_as_in_the_training(numbers, capsys):
    out, result = numbers
    found = document(capsys, out)
    assert (found["task"], found["name"], found["step"]) == ("nmt", "delta", result["best_step"])
    assert found["rows"] == [pytest.approx(best(result))]
    (other,) = document(capsys, out, "--split", "test")["rows"]
    assert other != found["rows"][0]


def test_a_table_is_shown(numbers, parity, capsys):
    for run, heads in ((numbers[0], ["loss", "perplexity", "accuracy"]), (parity[0], ["31-40"])):
        assert cli.main(["eval", str(run)]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert set(heads) <= set(first.split())
        assert len(second.split()) == len(first.split())


class Line(Task):
    def __init__(self):
        import torch

        self.model = torch.nn.Linear(1, 1)
        self.tokens_per_step, self.generators = 1, {}

    def loss(self):
        return self.model.weight.sum()

    def evaluate(self):
        return {"loss": 1.0}


def test_wrong_usage_is_told(numbers, parity, tmp_path, capsys):
    def told(*arguments):
        assert cli.main(["eval", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    assert "--context: " in (said := told(numbers[0], "--context", 4)) and "task nmt" in said
    assert "--split: " in told(parity[0], "--split", "test")
    assert "--lengths: expected A-B" in told(parity[0], "--lengths", "x")
    assert "strings: expected at least 0" in told(parity[0], "--strings", "-1")
    train(Line(), TrainConfig(steps=1), {"task": "line", "name": "line"}, tmp_path / "line")
    assert "of the task line" in told(tmp_path / "line")
    with pytest.raises(fwgen.ArgumentError, match="expected a formal language"):
        formal_eval.load(numbers[0])
    with pytest.raises(fwgen.ArgumentError, match="expected a translator"):
        nmt_eval.load(parity[0])
