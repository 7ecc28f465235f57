"""The language model: exactness of its forms, training, evaluation, self-contained checkpoints."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import fwgen
from fwgen.models import checkpoint, lm_task
from fwgen.models.data.text import Bytes
from fwgen.models.lm import LanguageModel, LMConfig, sinusoids, state_tensors, states_from
from fwgen.models.lm_eval import EvalConfig, evaluate, load
from fwgen.models.lm_task import PRESETS, LMRunConfig, LMTask
from fwgen.models.mixer import AttentionConfig
from fwgen.models.output import AdaptiveSoftmax
from fwgen.models.settings import TrainConfig
from fwgen.models.train import train

AUSTEN = Path(__file__).parent / "data" / "austen.txt"
RULES = ["delta", "linear_attention", "performer", "recurrent_delta", "srwm", "agalite", "softmax"]
SHAPES = {
    "plain": {},
    "post, sinusoidal": {"norm": "post", "positions": "sinusoidal", "feed": "relu"},
    "rotary": {"positions": "rotary"},
    "adaptive": {"output": "adaptive", "cutoffs": (5, 9)},
    "untied": {"output": "untied"},
}


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


def config(rule="delta", attention=None, **shape):
    mixer = AttentionConfig(rule, heads=2, sizes={"M": 6, "R": 2, "J": 3}, **attention or {})
    return LMConfig(vocab=17, layers=2, d_model=8, d_ff=12, attention=mixer, **shape)


def model(*arguments, **options):
    torch.manual_seed(0)
    return LanguageModel(config(*arguments, **options)).eval()


def tokens(batch=2, length=9):
    return torch.randint(17, (batch, length), generator=torch.Generator().manual_seed(1))


CASES = [(rule, "plain") for rule in RULES] + [
    (rule, shape) for rule in ("delta", "softmax") for shape in SHAPES if shape != "plain"
]


# --- exactness


@pytest.mark.parametrize(("rule", "shape"), CASES)
def test_carried_segments_and_single_steps_equal_one_long_segment(rule, shape):
    lm, x = model(rule, {"short_conv": 3}, **SHAPES[shape]), tokens()
    whole, _ = lm(x)
    parts, state = [], None
    for start, end in ((0, 3), (3, 4), (4, 6)):
        part, state = lm(x[:, start:end], None, state, start, keep_state=True)
        parts.append(part)
    for t in (6, 7, 8):
        part, state = lm.step(x[:, t], state, t)
        parts.append(part[:, None])
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(2, 9))


@pytest.mark.parametrize(("rule", "shape"), CASES)
def test_the_loss_is_that_of_the_distribution(rule, shape):
    lm, x = model(rule, **SHAPES[shape]), tokens()
    want = -lm(x)[0].gather(-1, x.roll(1, 1)[..., None])[..., 0]
    torch.testing.assert_close(lm(x, x.roll(1, 1))[0], want)


@pytest.mark.parametrize("rule", RULES)
def test_what_comes_later_changes_nothing_before(rule):
    lm, x = model(rule, {"short_conv": 3}), tokens()
    changed = x.clone()
    changed[:, 5:] = (changed[:, 5:] + 3) % 17
    assert torch.equal(lm(x)[0][:, :5], lm(changed)[0][:, :5])
    assert not torch.equal(lm(x)[0][:, 5:], lm(changed)[0][:, 5:])


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "softmax"])
def test_the_state_of_a_rule_has_one_size_whatever_it_has_read(rule):
    lm = model(rule)
    sizes = [
        [x.shape for x in state_tensors(lm.read(tokens(1, length), None, 0)[1]).values()]
        for length in (1, 9)
    ]
    assert sizes[0] == sizes[1]


def test_states_survive_being_taken_apart():
    _, state = model("delta", {"short_conv": 3}).read(tokens(), None, 0)
    again = states_from(state_tensors(state), "cpu")
    assert [list(own) for own in again] == [list(own) for own in state]
    assert all(
        torch.equal(a[n], b[n]) for a, b in zip(again, state, strict=True) for n in a
    )  # fmt: skip
    assert states_from({}, "cpu") is None


@pytest.mark.parametrize("shape", SHAPES)
def test_every_weight_receives_a_gradient(shape):
    lm = model("delta", **SHAPES[shape]).train()
    lm(tokens(), tokens())[0].mean().backward()
    for name, parameter in lm.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_sinusoids_go_on_where_they_were():
    assert torch.equal(sinusoids(0, 9, 6)[4:], sinusoids(4, 5, 6))
    assert sinusoids(3, 2, 5).shape == (2, 5)


def test_adaptive_cutoffs_must_fit_the_vocabulary():
    for cutoffs in ((), (5, 5), (9, 5), (17,), (0, 5)):
        with pytest.raises(fwgen.ArgumentError, match="cutoffs: expected rising"):
            AdaptiveSoftmax(17, 8, cutoffs)


@pytest.mark.parametrize(("name", "millions"), [("wt103-small", 44.0), ("wt103-medium", 89.9)])
def test_the_papers_models_have_the_papers_size(name, millions):
    """Counted with a small vocabulary; each further word adds a vector and a bias."""
    preset = PRESETS[name].model
    lm = LanguageModel(replace(preset, vocab=100, cutoffs=(20, 40, 60)))
    count = sum(p.numel() for p in lm.parameters()) + (267_735 - 100) * (preset.d_model + 1)
    assert count / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layers": 0}, "layers: expected at least 1"),
        ({"norm": "both"}, "norm: expected one of pre, post"),
        ({"positions": "learned"}, "positions"),
        ({"output": "sampled"}, "output"),
        ({"dropout": 1.0}, "dropout: expected at least 0 and below 1"),
        ({"dropout": math.nan}, "dropout"),
    ],
)
def test_wrong_shapes_are_refused(wrong, message):
    with pytest.raises(fwgen.ArgumentError, match=message):
        LMConfig(**wrong)


# --- training

TINY = PRESETS["tiny"]
SMALL = replace(
    TINY,
    model=replace(TINY.model, d_model=16, d_ff=32, dropout=0.1),
    run=LMRunConfig("bytes", batch=4, segment=16, eval_batch=4, eval_tokens=400),
)


def preset(rule="delta", steps=12, **training):
    attention = AttentionConfig(rule, heads=2, short_conv=2, sizes={"M": 6})
    settings = {"eval_every": 5, "checkpoint_every": 4, "accumulate": 2} | training
    return replace(
        SMALL,
        model=replace(SMALL.model, attention=attention),
        training=replace(TINY.training, steps=steps, warmup=3, **settings),
    )


def kill():
    raise ZeroDivisionError  # stands for a kill: nothing is saved on the way out


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def losses_of(chosen, out, stop=None, **options):
    losses = {}

    def note(step, loss):
        losses[step] = loss
        if stop and step == stop[0]:
            stop[1]()

    try:
        result = lm_task.run(AUSTEN, chosen, out, on_step=note, **options)
    except ZeroDivisionError:
        result = None
    return losses, result


@pytest.mark.parametrize("rule", ["delta", "softmax", "performer"])
@pytest.mark.parametrize(("stop", "saved"), [((7, kill), 4), ((6, terminate), 6)])
def test_a_resumed_run_repeats_every_bit(rule, stop, saved, tmp_path):
    """With dropout, a schedule, accumulation and a state that is carried over the cut."""
    chosen = preset(rule)
    whole, result = losses_of(chosen, tmp_path / "whole")
    losses_of(chosen, tmp_path / "cut", stop)
    torch.manual_seed(99)  # a new process has another state
    rest, result_rest = losses_of(chosen, tmp_path / "cut", resume=True)
    assert rest == {step: loss for step, loss in whole.items() if step > saved}
    assert result_rest["history"] == result["history"]
    for name in (checkpoint.LAST, checkpoint.BEST):
        one, other = (checkpoint.read(tmp_path / run / name) for run in ("whole", "cut"))
        assert one.tensors.keys() == other.tensors.keys()
        for key, tensor in one.tensors.items():
            assert torch.equal(tensor, other.tensors[key]), key
    assert (tmp_path / "cut/history.csv").read_text() == (
        tmp_path / "whole/history.csv"
    ).read_text()


def test_a_carried_state_is_the_one_of_the_whole_row():
    """Two segments with the state carried give the losses of one segment of both."""
    run = replace(SMALL.run, batch=2, segment=8)
    task = LMTask(AUSTEN, replace(SMALL.model, dropout=0.0), run)
    x, y, _ = task.streams.next()
    x2, y2, first = task.streams.next()
    assert not first
    task.streams.column -= 16
    parts = torch.stack([task.loss(), task.loss()]).mean()
    whole, _ = task.model(torch.cat([x, x2], 1), torch.cat([y, y2], 1))
    torch.testing.assert_close(parts, whole.mean(), rtol=1e-5, atol=1e-5)
    assert (task.position, task.carried[0]["W"].requires_grad) == (16, False)


@pytest.mark.parametrize("rule", ["gated_delta", "softmax"])
def test_a_short_run_learns(rule, tmp_path):
    chosen = preset(rule, 150, lr=1e-2, accumulate=1, eval_every=50)
    run = replace(chosen.run, batch=8, segment=32)
    result = lm_task.run(AUSTEN, replace(chosen, run=run), tmp_path)
    first, last = result["history"][0], result["history"][-1]
    assert last["loss"] < first["loss"] - 0.1
    assert last["loss"] < 2.9  # what knows the frequency of bytes alone is at 3.08
    assert last["perplexity"] == pytest.approx(math.exp(last["loss"]))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_trains_close_to_float32(precision):
    exact, _ = losses_of(preset(steps=6), None)
    half, _ = losses_of(preset(steps=6, precision=precision), None)
    assert exact != half
    for step, loss in exact.items():
        assert half[step] == pytest.approx(loss, rel=0.02)


def test_accumulated_batches_are_averaged():
    """Two batches of a step give the mean of what each gives alone."""
    task = LMTask(AUSTEN, replace(SMALL.model, dropout=0.0), SMALL.run)
    with torch.no_grad():
        both = [task.loss().item(), task.loss().item()]
    task = LMTask(AUSTEN, replace(SMALL.model, dropout=0.0), SMALL.run)
    seen = []
    training = replace(preset().training, steps=1)
    train(task, training, {"name": "test"}, on_step=lambda _, loss: seen.append(loss))
    assert seen == [pytest.approx(sum(both) / 2)]


# --- schedule and settings


def test_the_cosine_rises_and_falls_to_zero():
    training = TrainConfig(steps=100, lr=2.0, schedule="cosine", warmup=10)
    rates = [training.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == rates[10] == 2.0
    assert rates[55] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.01
    inverse = TrainConfig(lr=2.0, schedule="inverse-sqrt", warmup=4)
    assert [inverse.rate(step) for step in (0, 3, 15)] == [0.5, 2.0, 1.0]
    assert TrainConfig(lr=2.0).rate(5) == 2.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"lr": -1.0}, "lr: expected a positive number"),
        ({"lr": math.nan}, "lr: expected a positive number"),
        ({"lr": math.inf}, "lr: expected a positive number"),
        ({"eval_every": 0}, "eval_every"),
        ({"warmup": -1}, "warmup"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"schedule": "linear"}, "schedule: expected one of constant, cosine"),
        ({"precision": "int8"}, "precision"),
    ],
)
def test_wrong_training_settings_are_refused(wrong, message):
    with pytest.raises(fwgen.ArgumentError, match=message):
        TrainConfig(**wrong)


def test_weight_decay_shrinks_matrices_and_no_gate():
    task = LMTask(AUSTEN, SMALL.model, SMALL.run)
    before = {name: p.detach().clone() for name, p in task.model.named_parameters()}
    task.loss = lambda: 0.0 * sum(p.sum() for p in task.model.parameters())
    training = TrainConfig(steps=1, lr=0.1, weight_decay=0.5)
    train(task, training, {"name": "test"})
    for name, p in task.model.named_parameters():
        want = before[name] * (0.95 if p.ndim > 1 else 1.0)
        torch.testing.assert_close(p.detach(), want, msg=name)


# --- evaluation


def test_perplexities_follow_from_the_loss():
    lm = model().train(False)
    text = "ab c\n" * 6
    code = torch.tensor([ord(c) % 17 for c in text])

    class Coded(Bytes):
        def decode(self, numbers):
            return text[1:]

    found = evaluate(lm, Coded(), code, EvalConfig(segment=5))
    nll = lm(code[None, :-1], code[None, 1:])[0].sum().item()
    assert found["tokens"] == 29
    assert found["loss"] == pytest.approx(nll / 29, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nll / 29), rel=1e-5)
    assert found["word_perplexity"] == pytest.approx(math.exp(nll / 12), rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(nll / math.log(2) / 29, rel=1e-5)


@pytest.mark.parametrize("rule", ["delta", "softmax"])
def test_context_is_what_the_model_sees(rule):
    lm, row = model(rule), tokens(1, 25)
    x, y = row[:, :-1], row[:, 1:]

    def loss(*arguments):
        return evaluate(lm, Bytes(), row[0], EvalConfig(*arguments))["loss"]

    whole = lm(x, y)[0].mean().item()
    for segment in (5, 24, 100):
        assert loss(segment) == pytest.approx(whole, rel=1e-5)
    fresh = torch.cat([lm(x[:, i : i + 8], y[:, i : i + 8])[0] for i in (0, 8, 16)]).mean().item()
    for segment in (3, 8, 100):
        assert loss(segment, 8) == pytest.approx(fresh, rel=1e-5)
    ends = [
        lm(x[:, max(0, i - 7) : i + 1], y[:, max(0, i - 7) : i + 1])[0][0, -1] for i in range(24)
    ]
    assert loss(24, 8, 1) == pytest.approx(torch.stack(ends).mean().item(), rel=1e-5)
    assert loss(24, 8, 8) == pytest.approx(fresh, rel=1e-5)
    assert len({whole, fresh, loss(24, 8, 1)}) == 3


def test_streams_of_an_evaluation_are_judged_apart():
    lm, row = model(), tokens(1, 25)[0]
    halves = [lm(row[None, i : i + 12], row[None, i + 1 : i + 13])[0] for i in (0, 12)]
    found = evaluate(lm, Bytes(), row, EvalConfig(batch=2))
    assert found["loss"] == pytest.approx(torch.stack(halves).mean().item(), rel=1e-5)
    with pytest.raises(fwgen.ArgumentError, match="too few for 30 streams"):
        evaluate(lm, Bytes(), row, EvalConfig(batch=30))


# --- checkpoints


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe", "words"])
def test_a_checkpoint_is_enough(tokenizer, tmp_path):
    """Neither the rule's file nor the corpus is there any more; the same figures come out."""
    rule, corpus = tmp_path / "mine.yaml", tmp_path / "corpus.txt"
    rule.write_text(fwgen.load_rule("delta").to_yaml().replace("name: delta", "name: mine"))
    shutil.copy(AUSTEN, corpus)
    chosen = preset(str(rule))
    attention = replace(chosen.model.attention, maps={"phi": "sum_normalize(elu1(x))"})
    run = replace(chosen.run, tokenizer=tokenizer, vocab=300)
    chosen = replace(chosen, model=replace(chosen.model, attention=attention), run=run)
    result = lm_task.run(corpus, chosen, tmp_path / "run")
    alone = tmp_path / "elsewhere.safetensors"
    shutil.copy(tmp_path / "run" / checkpoint.BEST, alone)
    shutil.rmtree(tmp_path / "run")
    rule.unlink()
    corpus.unlink()
    assert "elu1" in checkpoint.read(alone).texts["rule"]
    found = load(alone)
    held_out = found.tokenizer.encode(AUSTEN.read_text()[-4000:])
    assert found.model.config.vocab == found.tokenizer.vocab
    again = load(alone)
    figures = [evaluate(f.model, f.tokenizer, held_out, EvalConfig(16)) for f in (found, again)]
    assert figures[0] == figures[1]
    assert figures[0]["loss"] == pytest.approx(result["best"], rel=0.3)
    assert found.model.blocks[0].attention.mixer.op.rule.name == "mine"


def test_the_best_model_is_kept(tmp_path):
    """Of evaluations that find 3, 1, NaN and 2 the second one's weights, whatever comes after."""
    task = LMTask(AUSTEN, SMALL.model, SMALL.run)
    found, weights = [2.0, math.nan, 1.0, 3.0], {}
    task.evaluate = lambda: {"loss": found.pop()}

    def note(step, _):
        weights[step] = {n: p.detach().clone() for n, p in task.model.named_parameters()}

    training = replace(TINY.training, steps=8, eval_every=2)
    result = train(task, training, {"task": "lm", "name": ""}, tmp_path, on_step=note)
    assert (result["best"], result["best_step"]) == (1.0, 4)
    kept = checkpoint.read(tmp_path)
    assert kept.path.name == checkpoint.BEST
    assert kept.run["progress"]["step"] == 4
    for name, tensor in weights[4].items():
        assert torch.equal(kept.tensors[f"model.{name}"], tensor), name
        assert not torch.equal(weights[8][name], tensor), name


def test_what_is_no_checkpoint_is_told(tmp_path):
    with pytest.raises(fwgen.ArgumentError, match="found no"):
        load(tmp_path / "nothing")
    with pytest.raises(fwgen.ArgumentError, match=r"expected best\.safetensors or checkpoint"):
        load(tmp_path)
    (tmp_path / checkpoint.BEST).write_bytes(b"{}")
    with pytest.raises(fwgen.ArgumentError, match="is not a checkpoint"):
        load(tmp_path)
    checkpoint.write(tmp_path / checkpoint.BEST, {}, {}, {"about": {"task": "retrieval"}})
    with pytest.raises(fwgen.ArgumentError, match="is of the task retrieval"):
        load(tmp_path)


def test_resume_refuses_another_rule_corpus_or_length(tmp_path):
    rule = tmp_path / "mine.yaml"
    text = fwgen.load_rule("delta").to_yaml().replace("name: delta", "name: mine")
    rule.write_text(text)
    chosen = preset(str(rule), 4)
    lm_task.run(AUSTEN, chosen, tmp_path / "run")
    rule.write_text(text.replace("beta * outer", "0.5 * beta * outer"))
    with pytest.raises(fwgen.ArgumentError, match="text of its rule is another one"):
        lm_task.run(AUSTEN, chosen, tmp_path / "run", resume=True)
    rule.write_text(text)
    other = tmp_path / "other.txt"
    other.write_text(AUSTEN.read_text("utf-8")[1:], "utf-8")
    with pytest.raises(fwgen.ArgumentError, match=r"data\.digest"):
        lm_task.run(other, chosen, tmp_path / "run", resume=True)
    with pytest.raises(fwgen.ArgumentError, match=r"train\.steps is 4, asked for 8"):
        lm_task.run(AUSTEN, preset(str(rule), 8), tmp_path / "run", resume=True)
    with pytest.raises(fwgen.ArgumentError, match="holds a run"):
        lm_task.run(AUSTEN, chosen, tmp_path / "run")


def test_results_and_logs(tmp_path):
    result = lm_task.run(AUSTEN, preset(log_every=2), tmp_path, tensorboard=True)
    assert json.loads((tmp_path / "results.json").read_text()) == result
    assert result["config"]["model"] == json.loads(
        json.dumps(asdict(load(tmp_path).model.config))
    ) | {"attention": result["config"]["model"]["attention"]}
    lines = (tmp_path / "history.csv").read_text().splitlines()
    assert lines[0] == "step,train_loss,loss,perplexity,word_perplexity"
    assert [line.split(",")[0] for line in lines[1:]] == ["5", "10", "12"]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert {"loss", "lr", "tokens/s", "evaluation/loss"} <= set(events.Tags()["scalars"])
    assert [e.step for e in events.Scalars("loss")] == [2, 4, 6, 8, 10, 12]
    assert [e.step for e in events.Scalars("evaluation/loss")] == [5, 10, 12]


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_same_bits(tmp_path):
    """A real SIGKILL at an arbitrary moment, again and again, of the command as users start it."""
    words = [sys.executable, "-m", "fwgen", "train", "lm", "--data", AUSTEN, "--preset", "tiny"]
    words += ["--steps", "60", "--eval-every", "20", "--checkpoint-every", "7", "--dropout", "0.1"]
    words = [*map(str, words), "--no-tensorboard", "--threads", "1", "--out"]
    subprocess.run([*words, str(tmp_path / "whole")], check=True, capture_output=True)
    cut, steps = tmp_path / "cut", []
    for _ in range(200):
        resume = ["--resume"] if (cut / checkpoint.LAST).exists() else ["--overwrite"]
        process = subprocess.Popen([*words, str(cut), *resume], stderr=subprocess.DEVNULL)
        before = step_of(cut)
        while process.poll() is None and step_of(cut) == before:
            time.sleep(0.01)
        time.sleep(0.05)
        process.kill()
        if process.wait() == 0:
            break
        steps.append(step_of(cut))
    assert len(steps) > 2
    one, other = (checkpoint.read(tmp_path / run / checkpoint.LAST) for run in ("whole", "cut"))
    assert one.run["progress"]["history"] == other.run["progress"]["history"]
    for key, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[key]), key


def step_of(folder):
    path = folder / checkpoint.LAST
    return checkpoint.read(path).run["progress"]["step"] if path.exists() else 0
