"""Training a translator and using it: number words learned, exact resume, the commands."""

import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fwgen
from fwgen import cli
from fwgen.models import checkpoint, nmt_task
from fwgen.models.beam import BeamConfig
from fwgen.models.data import numbers
from fwgen.models.mixer import AttentionConfig
from fwgen.models.nmt_eval import bleu, load

TINY = nmt_task.PRESETS["tiny"]
NUMBERS = Path("numbers")


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


def preset(rule="delta", encoder="softmax", cross="softmax", steps=300, layers=1, **training):
    parts = (AttentionConfig(name, heads=2, sizes={"M": 32}) for name in (rule, encoder, cross))
    attentions = dict(zip(("attention", "encoder", "cross"), parts, strict=True))
    settings = {"warmup": 60, "eval_every": steps, "checkpoint_every": steps} | training
    return nmt_task.Preset(
        replace(TINY.model, encoder_layers=layers, decoder_layers=layers, **attentions),
        replace(TINY.run, smoothing=0.0),
        replace(TINY.training, steps=steps, **settings),
    )


def test_number_words_are_learned(tmp_path):
    pytest.importorskip("tokenizers")
    result = nmt_task.run(NUMBERS, preset(), tmp_path)
    assert result["last"]["accuracy"] > 0.95
    source, target = numbers.pairs("test")
    translations = load(tmp_path).translate(source[:40], BeamConfig(beam=2))
    right = sum(one == other for one, other in zip(translations, target, strict=False))
    assert right > 20, right  # of 40, whole words without a slip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "encoder", "cross"),
    [
        ("softmax", "softmax", "softmax"),
        ("linear_attention", "softmax", "softmax"),
        ("performer", "softmax", "softmax"),
        ("delta", "softmax", "softmax"),
        ("gated_delta", "linear_attention", "softmax"),
        ("delta", "linear_attention", "linear_attention"),
        ("delta", "linear_attention", "delta"),
    ],
)
def test_number_words_are_learned_by_every_kind(rule, encoder, cross, tmp_path):
    result = nmt_task.run(NUMBERS, preset(rule, encoder, cross, 1000, layers=2), tmp_path)
    assert result["last"]["accuracy"] > 0.95
    source, target = numbers.pairs("test")
    translations = load(tmp_path).translate(source, BeamConfig())
    assert bleu(translations, target)["exact"] > 0.9


# --- resume


def small(rule="delta", **training):
    """Seconds of training on bytes, with dropout."""
    sizes = {"d_model": 16, "d_ff": 32, "dropout": 0.1}
    chosen = preset(rule, "linear_attention", steps=10, **training)
    return replace(
        chosen,
        model=replace(chosen.model, **sizes),
        run=replace(chosen.run, tokenizer="bytes", batch_tokens=400, smoothing=0.1),
    )


@pytest.fixture
def corpus(tmp_path):
    """A few of the number words as files."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, count in (("train", 60), ("valid", 10), ("test", 5)):
        for language, lines in zip(("en", "de"), numbers.pairs(split), strict=True):
            (folder / f"{split}.{language}").write_text("\n".join(lines[:count]) + "\n")
    return folder


def kill():
    raise ZeroDivisionError  # stands for a kill: nothing is saved on the way out


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def losses_of(corpus, chosen, out, stop=None, **options):
    losses = {}

    def note(step, loss):
        losses[step] = loss
        if stop and step == stop[0]:
            stop[1]()

    try:
        result = nmt_task.run(corpus, chosen, out, on_step=note, **options)
    except ZeroDivisionError:
        result = None
    return losses, result


@pytest.mark.parametrize("rule", ["delta", "softmax"])
@pytest.mark.parametrize(("stop", "saved"), [((9, kill), 8), ((6, terminate), 6)])
def test_a_resumed_run_repeats_every_bit(rule, stop, saved, corpus, tmp_path):
    """With dropout, a schedule, accumulation and a second pass over the data."""
    chosen = small(rule, eval_every=5, checkpoint_every=4, accumulate=2)
    whole, result = losses_of(corpus, chosen, tmp_path / "whole")
    losses_of(corpus, chosen, tmp_path / "cut", stop)
    torch.manual_seed(99)  # a new process has another state
    rest, result_rest = losses_of(corpus, chosen, tmp_path / "cut", resume=True)
    assert rest == {step: loss for step, loss in whole.items() if step > saved}
    assert result_rest["history"] == result["history"]
    ends = [checkpoint.read(tmp_path / run, checkpoint.LAST) for run in ("whole", "cut")]
    assert ends[0].tensors["task.pass"] > 0
    for key, tensor in ends[0].tensors.items():
        assert torch.equal(tensor, ends[1].tensors[key]), key


def test_a_changed_rule_is_not_resumed(corpus, tmp_path):
    rule = tmp_path / "own.yaml"
    rule.write_text(fwgen.load_rule("delta").to_yaml())
    chosen = small()
    cross = replace(chosen.model.cross, rule=str(rule))
    chosen = replace(chosen, model=replace(chosen.model, cross=cross))
    losses_of(corpus, chosen, tmp_path / "run", (5, terminate))
    rule.write_text(rule.read_text().replace("beta * outer", "0.5 * beta * outer"))
    with pytest.raises(fwgen.ArgumentError, match=r"another run: data\.rules\.cross"):
        losses_of(corpus, chosen, tmp_path / "run", resume=True)


def test_other_data_is_not_resumed(corpus, tmp_path):
    losses_of(corpus, small(), tmp_path / "run", (5, terminate))
    lines = (corpus / "train.de").read_text().splitlines()
    (corpus / "train.de").write_text("\n".join(["andere", *lines[1:]]) + "\n")
    with pytest.raises(fwgen.ArgumentError, match=r"another run: data\.digest"):
        losses_of(corpus, small(), tmp_path / "run", resume=True)


# --- figures


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_trains_close_to_float32(precision, corpus):
    chosen = preset("delta", "linear_attention", "delta", steps=6, eval_every=6)
    chosen = replace(chosen, run=replace(chosen.run, tokenizer="bytes", batch_tokens=400))
    exact, _ = losses_of(corpus, chosen, None)
    mixed = replace(chosen, training=replace(chosen.training, precision=precision))
    losses, _ = losses_of(corpus, mixed, None)
    assert losses != exact
    assert list(losses.values()) == pytest.approx(list(exact.values()), rel=0.03)


def test_the_loss_is_that_of_real_tokens(corpus):
    """Of a batch, computed one sentence at a time."""
    task = nmt_task.NMTTask(corpus, small().model, replace(small().run, smoothing=0.0))
    task.model.eval()
    where = task.batches.state()
    total = count = 0
    batch = task.batches.next()
    for b, length in enumerate(batch.lengths.tolist()):
        n = int(batch.real[b].sum())
        scores = task.model(
            batch.source[b : b + 1, :length],
            batch.lengths[b : b + 1],
            batch.inputs(task.end)[b : b + 1, :n],
        )
        log_probs = scores[0].log_softmax(-1)
        total -= log_probs.gather(1, batch.target[b, :n, None]).sum().item()
        count += n
    task.batches.load_state(where)
    assert task.loss().item() == pytest.approx(total / count, rel=1e-4)
    task.run = replace(task.run, smoothing=0.1)
    task.batches.load_state(where)
    assert task.loss().item() != pytest.approx(total / count, rel=1e-4)


def test_an_evaluation_does_not_depend_on_its_batches(corpus):
    figures = []
    for tokens in (100, 4000):
        run = replace(small().run, batch_tokens=tokens)
        task = nmt_task.NMTTask(corpus, small().model, run)
        task.model.eval()
        figures.append(task.evaluate())
    assert figures[0] == pytest.approx(figures[1], rel=1e-5)
    assert 0 <= figures[0]["accuracy"] < 0.2  # untrained


def test_bleu_is_sacrebleus():
    pytest.importorskip("sacrebleu")
    references = ["der Hund läuft in den großen Wald .", "die Katze schläft heute sehr lange ."]
    same = bleu(references, references)
    assert same["bleu"] == pytest.approx(100)
    assert same["exact"] == 1
    assert "tok:13a" in same["signature"] and "version:" in same["signature"]
    other = bleu([references[0], "die Katze frisst ."], references)
    assert 20 < other["bleu"] < 90
    assert other["exact"] == 0.5
    with pytest.raises(fwgen.ArgumentError, match="found 2 for 1"):
        bleu(references[:1], references)


# --- use


def fwgen_command(monkeypatch, capsys, *arguments, text=""):
    stream = io.BytesIO(text if isinstance(text, bytes) else text.encode())
    stdin = SimpleNamespace(buffer=stream, isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    code = cli.main([str(argument) for argument in arguments])
    return code, capsys.readouterr()


def test_the_commands(corpus, tmp_path, monkeypatch, capsys):
    def command(*arguments, **options):
        return fwgen_command(monkeypatch, capsys, *arguments, **options)

    rule = tmp_path / "own.yaml"
    rule.write_text(fwgen.load_rule("delta").to_yaml())
    out = tmp_path / "run"
    shape = ["--preset", "tiny", "--d-model", 16, "--heads", 1, "--tokenizer", "bytes"]
    train = ["train", "nmt", "--data", corpus, "--rule", rule, *shape, "--cross", "same"]
    train += ["--encoder", "linear_attention", "--steps", 3, "--out", out, "--threads", 1]
    code, shown = command(*train, "--no-tensorboard")
    assert (code, shown.err) == (0, "")
    assert "own, encoder linear_attention, cross own: 3 steps (steps)" in shown.out
    about = json.loads((out / "results.json").read_text())
    assert about["data"]["languages"] == ["en", "de"]
    assert about["config"]["model"]["cross"]["heads"] == 1
    code, shown = command(*train)
    assert code == 2 and "holds a run; --resume goes on with it" in shown.err

    rule.unlink()  # a checkpoint is enough
    moved = corpus.rename(tmp_path / "moved")
    use = ["translate", out, "--threads", 1, "--beam", 2]
    code, shown = command(*use, text="seven\n\nthirty one\u2028x\r\neight")
    lines = shown.out.removesuffix("\n").split("\n")
    assert (code, len(lines), lines[1]) == (0, 4, "")
    code, shown = command(*use, "--lines", 1, "--json", text="seven\n\nthirty one\u2028x\r\neight")
    assert (code, json.loads(shown.out)["translations"]) == (0, lines)
    code, shown = command(*use, text="")
    assert (code, shown.out) == (0, "")
    code, shown = command(*use, text=" \n\n")
    assert (code, shown.out) == (0, "\n\n")
    code, shown = command(*use, text=b"one\n\xff\n")
    assert code == 2 and "standard input, line 2: not UTF-8 text" in shown.err
    code, shown = command(*use, "--split", "test")
    assert code == 2 and "expected test.en or newstest2014.en" in shown.err
    code, shown = command(*use, "--data", moved, "--split", "test")
    *lines, last = shown.out.splitlines()
    assert (code, len(lines)) == (0, 5)
    assert last.startswith("BLEU 0.00 nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    code, shown = command(*use, "--data", moved, "--split", "test", "--json")
    assert (code, json.loads(shown.out)["translations"]) == (0, lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "nowhere"], "or `numbers`, found no nowhere"),
        (["--data", "numbers", "--preset", "big"], "preset: expected one of tiny, small"),
        (["--data", "numbers", "--cross", "delta_rnn"], "memory: expected a rule whose output"),
        (["--data", "numbers", "--smoothing", "1"], "smoothing: expected at least 0 and below 1"),
        (["--data", "numbers", "--encoder", "none"], "no rule `none`"),
    ],
)
def test_wrong_usage_is_told(options, message, tmp_path, monkeypatch, capsys):
    arguments = ["train", "nmt", "--tokenizer", "bytes", "--out", tmp_path / "run", *options]
    code, shown = fwgen_command(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in shown.err
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_task_is_refused(tmp_path):
    from fwgen.models.retrieval import RetrievalConfig, run
    from fwgen.models.settings import TrainConfig

    run(RetrievalConfig(size=3, d_key=4), TrainConfig(steps=1), tmp_path)
    with pytest.raises(fwgen.ArgumentError, match="is of the task retrieval"):
        load(tmp_path)


def test_the_paper_s_model_has_its_size():
    """The base Transformer: 44.1M in the layers and 32,000 x 512 in the one embedding."""
    model = nmt_task.PRESETS["wmt"].model
    with torch.device("meta"):
        translator = nmt_task.Translator(replace(model, vocab=32_000, attention=model.encoder))
    count = sum(p.numel() for p in translator.parameters())
    assert count / 1e6 == pytest.approx(44.1 + 16.4, abs=0.3)
