"""Models on formal languages: masks, bins, exact resume, the command, and who extrapolates parity.

Transitions that depend on the input alone and have eigenvalues in [0, 1] (sums, the delta rule with
beta below 1) cannot count modulo two; reflections (beta up to 2), recurrent and self-referential
rules can.
"""

import json
from dataclasses import replace

import pytest
import torch

import fwgen
from fwgen import cli
from fwgen.models import checkpoint
from fwgen.models.data.formal import LANGUAGES
from fwgen.models.data.language import IGNORED
from fwgen.models.formal import (
    MODEL,
    TRAINING,
    FormalTask,
    Labeller,
    preset,
    right_strings,
    run,
)
from fwgen.models.lm import LMConfig
from fwgen.models.mixer import AttentionConfig
from fwgen.models.running import Progress
from fwgen.models.settings import TrainConfig

DOUBLE = {"beta": "2 sigmoid"}
ATTENTIONS = {
    "sum": AttentionConfig("sum", heads=4),
    "delta": AttentionConfig("delta", {"phi": "sum_normalize(elu1(x))"}, heads=4),
    "delta, unit keys": AttentionConfig("delta", {"phi": "l2norm(silu(x))"}, heads=4),
    "delta, beta up to 2": AttentionConfig(
        "delta", {"phi": "l2norm(silu(x))"}, heads=4, activations=DOUBLE
    ),
    "recurrent delta": AttentionConfig("recurrent_delta", heads=4),
    "srwm": AttentionConfig("srwm", heads=4),
}
FAILING = ["sum", "delta", "delta, unit keys"]
SOLVING = ["delta, beta up to 2", "recurrent delta", "srwm"]


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


def tiny(rule="delta", language="parity", **changes):
    attention = AttentionConfig(rule, heads=2)
    shape = LMConfig(layers=1, d_model=8, d_ff=8, attention=attention)
    common = {"batch": 8, "eval_strings": 20, "model": shape}
    return replace(preset(language), **{**common, **changes})


# --- model, masks


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "rotary"])
@pytest.mark.parametrize("rule", ["delta", "softmax"])
def test_no_answer_depends_on_later_symbols_or_padding(rule, positions):
    torch.manual_seed(0)
    config = replace(tiny(rule).model, vocab=5, positions=positions)
    model = Labeller(config, 3).eval()
    symbols = torch.randint(5, (4, 11))
    changed = torch.cat([symbols[:, :6], (symbols[:, 6:] + 1) % 5], 1)
    with torch.no_grad():
        whole, other, short = model(symbols), model(changed), model(symbols[:, :6])
    assert whole.shape == (4, 11, 3)
    assert not torch.allclose(whole[:, 6:], other[:, 6:])
    for y in (other[:, :6], short):
        torch.testing.assert_close(y, whole[:, :6])


def test_a_string_is_right_when_every_question_is():
    targets = torch.tensor([[0, 1, 2], [0, 1, IGNORED], [IGNORED, IGNORED, 1], [2, 1, 0]])
    answers = torch.tensor([[0, 1, 2], [0, 1, 0], [0, 0, 2], [2, 1, 1]])
    scores = torch.nn.functional.one_hot(answers, 3).float()
    assert right_strings(scores, targets).tolist() == [True, True, False, False]


class Oracle(torch.nn.Module):
    """Right answers where there is a question, class 0 elsewhere, but one wrong one to `wrong`."""

    def __init__(self, language, wrong=()):
        super().__init__()
        self.language, self.wrong = language, wrong

    def forward(self, symbols):
        """What follows at a symbol does not depend on the padding after it."""
        names, classes = self.language.alphabet, self.language.classes
        answers = []
        for row in symbols.tolist():
            word = tuple(names[i] for i in row)
            labels = self.language.label(word)
            answers.append([0 if c is None else classes.index(c) for c in labels])
            if word == self.wrong:
                answers[-1][0] = (answers[-1][0] + 1) % len(classes)
        return 30 * torch.nn.functional.one_hot(torch.tensor(answers), len(classes)).float()


@pytest.mark.parametrize("language", ["modular", "parity", "dyck1", "s3"])
def test_only_questions_count(language):
    """Operators of an expression and padding have no right answer: none is wrong either."""
    task = FormalTask(tiny(language=language))
    task.model = Oracle(task.language)
    figures = task.evaluate()
    assert figures["solved"] == figures["accuracy"] == 1
    assert figures["loss"] < 1e-6 and task.loss() < 1e-6
    task.model = Oracle(task.language, words(task, 0)[-1])
    figures = task.evaluate()
    bins = [name for name in figures if name.startswith("accuracy_")]
    assert figures["solved"] == 0 and figures["loss"] > 1e-3
    assert figures[bins[0]] == pytest.approx(1 - 1 / len(words(task, 0)))
    assert figures[bins[1]] == 1


def words(task, number):
    """The held-out strings of a bin, of a language that asks at the end."""
    names = task.language.alphabet
    found = []
    for symbols, targets in task.bins[number].batches:
        for row, asked in zip(symbols, targets != IGNORED, strict=True):
            length = 1 + int(asked.nonzero().max())
            found.append(tuple(names[i] for i in row[:length]))
    return found


def test_a_fixed_set_has_no_held_out_string():
    assert FormalTask(tiny()).words == []  # fresh ones
    task = FormalTask(tiny(strings=40))
    assert len(task.words) == len(set(task.words)) == 40
    assert not set(task.words) & set(words(task, 0))
    assert all(2 <= len(word) <= 20 for word in task.words)
    with pytest.raises(fwgen.ArgumentError, match="all are held out"):
        FormalTask(tiny(language="dyck1", lengths=(2, 2), strings=5))
    single = FormalTask(tiny(language="aa", strings=40))
    assert set(single.words) == set(words(single, 0))


def test_bins_have_the_strings_of_their_lengths():
    task = FormalTask(tiny(longer=((21, 30), (31, 31))))
    assert [one.name for one in task.bins] == ["2-20", "21-30", "31"]
    for number, (low, high) in enumerate(task.config.windows):
        found = words(task, number)
        assert len(set(found)) == len(found) == 20
        assert all(low <= len(word) <= high for word in found)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_bins_and_a_loss(language):
    config = replace(tiny(language=language), strings=min(preset(language).strings, 30))
    task = FormalTask(config)
    loss = task.loss()
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None for p in task.model.parameters())
    with torch.no_grad():
        figures = task.evaluate()
    bins = [name for name in figures if name.startswith("accuracy_")]
    assert len(bins) == 1 + len(config.longer)
    counts = [sum(len(x) for x, _ in one.batches) for one in task.bins]
    assert all(0 < count <= 20 for count in counts)
    total = sum(figures[name] * count for name, count in zip(bins, counts, strict=True))
    assert figures["accuracy"] == pytest.approx(total / sum(counts))
    assert figures["solved"] == float(figures["accuracy"] == 1)


# --- training


def test_a_seed_is_a_run_and_another_seed_another():
    def losses(seed):
        task = FormalTask(tiny(seed=seed))
        return [task.loss().item() for _ in range(3)], words(task, 1)

    assert losses(1) == losses(1)
    assert losses(1)[0] != losses(2)[0] and losses(1)[1] != losses(2)[1]


def test_a_short_training_learns():
    config = tiny(language="anbn", batch=16)
    with torch.no_grad():
        before = FormalTask(config).evaluate()["loss"]
    result = run(config, replace(TRAINING, steps=60, lr=1e-2, eval_every=60))
    assert result["last"]["loss"] < 0.5 * before
    assert json.loads(json.dumps(result)) == result


def test_training_stops_when_every_string_is_right():
    for solved in (0.0, 1.0):
        progress = Progress(step=1)
        progress.record({"loss": 0.1, "solved": solved}, TRAINING)
        assert progress.stopped == ("solved" if solved else "")


@pytest.mark.parametrize("strings", [0, 30])
def test_a_resumed_run_is_the_same_to_the_bit(tmp_path, strings):
    config = tiny(strings=strings)
    settings = {"eval_every": 2, "checkpoint_every": 1}
    whole = run(config, TrainConfig(steps=4, **settings), tmp_path / "whole")
    run(config, TrainConfig(steps=2, **settings), tmp_path / "cut")
    cut = run(config, TrainConfig(steps=4, **settings), tmp_path / "cut", resume=True)
    assert cut["history"] == whole["history"]
    one, other = (checkpoint.read(tmp_path / name) for name in ("whole", "cut"))
    assert all(torch.equal(x, other.tensors[name]) for name, x in one.tensors.items())
    with pytest.raises(fwgen.ArgumentError, match=r"config\.language"):
        run(tiny(language="modular"), TrainConfig(steps=4), tmp_path / "cut", resume=True)


# --- command


def test_the_command_trains_and_a_checkpoint_can_be_used_alone(tmp_path, capsys):
    arguments = "train formal --language dyck1 --rule delta --lengths 2-10"
    arguments += " --longer 12-16,18-20 --layers 1 --d-model 8 --heads 2 --batch 4 --steps 3"
    arguments += f" --eval-strings 5 --eval-every 3 --no-tensorboard --out {tmp_path}"
    assert cli.main([*arguments.split(), "--activation", "beta=2 sigmoid"]) == 0
    said = capsys.readouterr().out
    assert "on dyck1: 3 steps" in said and "(12-16)" in said and "(18-20)" in said
    about = json.loads((tmp_path / "results.json").read_text())
    assert about["task"] == "formal" and about["config"]["longer"] == [[12, 16], [18, 20]]
    assert about["config"]["model"]["attention"]["activations"] == DOUBLE
    found = checkpoint.read(tmp_path)
    shape = LMConfig.from_json(found.texts["model"], found.texts["rule"])
    language = LANGUAGES[json.loads(found.texts["language"])["language"]]
    model = Labeller(shape, len(language.classes))
    model.load_state_dict(found.group("model"))
    assert cli.main([*arguments.split(), "--activation", "beta=2 sigmoid"]) == 2  # a run is there
    assert "holds a run" in capsys.readouterr().err
    assert cli.main(["plot", str(tmp_path), "-o", str(tmp_path / "plot.png")]) == 0


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--language", "english"], "language: expected one of parity, aa"),
        (["--language", "aa", "--setup", "huge"], "setup: expected one of small, full"),
        (["--language", "aa", "--lengths", "2:9"], "--lengths: expected A-B, such as 2-20"),
        (["--language", "aa", "--longer", "20-30,x"], "--longer: expected A-B"),
        (["--language", "aa", "--lengths", "3-3"], "holds a size of aa"),
        (["--language", "aa", "--batch", "0"], "batch: expected at least 1"),
        (["--language", "aa", "--strings", "-1"], "strings: expected at least 0"),
        (["--language", "aa", "--device", "abacus"], "device: this machine has"),
    ],
)
def test_wrong_options_are_told(arguments, said, tmp_path, capsys):
    assert cli.main(["train", "formal", *arguments, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
    assert not (tmp_path / "run").exists()


# --- who extrapolates


def judged(name, language, seed, **changes):
    """Right strings of the lengths of training and of longer ones, after 1000 steps at most."""
    model = replace(MODEL, attention=ATTENTIONS[name])
    config = replace(preset(language), seed=seed, model=model, **changes)
    result = run(config, TRAINING)
    bins = [f"accuracy_{low}-{high}" for low, high in config.windows]
    return [result["last"][one] for one in bins]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", SOLVING)
def test_parity_is_solved(name, seed):
    assert judged(name, "parity", seed) == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", FAILING)
def test_parity_is_not_extrapolated(name, seed):
    assert judged(name, "parity", seed)[1] < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("language", ["aa", "abab"])
def test_repetitions_separate_in_the_same_way(language):
    for name in SOLVING:
        assert judged(name, language, 0, batch=8) == [1, 1], name
    for name in FAILING:
        assert judged(name, language, 0, batch=8)[1] < 0.3, name
