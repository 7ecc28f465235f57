"""Generation: the same text by steps, alone or in a batch; sampling; streaming; the commands."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fwgen
from fwgen.models import cli, lm_task
from fwgen.models.data.text import Bpe, Bytes
from fwgen.models.generate import Printer, SamplingConfig, draw, generate
from fwgen.models.lm import LanguageModel, LMConfig
from fwgen.models.lm_task import PRESETS, LMRunConfig
from fwgen.models.mixer import AttentionConfig

AUSTEN = Path(__file__).parent / "data" / "austen.txt"
GREEDY = SamplingConfig(tokens=6, temperature=0)


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


def model(rule="delta", **shape):
    torch.manual_seed(0)
    mixer = AttentionConfig(rule, heads=2, short_conv=3)
    lm = LanguageModel(LMConfig(13, 2, 8, 12, mixer, **shape)).eval()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.mul_(4)  # far from uniform
    return lm


def continuations(lm, prompts, config):
    """The new tokens of each prompt."""
    found = [[] for _ in prompts]
    for drawn in generate(lm, prompts, config):
        for own, token in zip(found, drawn, strict=True):
            if token is not None:
                own.append(token)
    return found


def by_whole_sequences(lm, prompt, count):
    """Greedy, each token from the whole text before it."""
    text = list(prompt)
    for _ in range(count):
        text.append(lm(torch.tensor([text]))[0][0, -1].argmax().item())
    return text[len(prompt) :]


PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [3], [5, 5, 9], [12, 0]]


@pytest.mark.parametrize("rule", ["delta", "recurrent_delta", "softmax"])
@pytest.mark.parametrize("positions", ["none", "sinusoidal", "rotary"])
def test_a_batch_of_prompts_goes_on_as_each_would_alone(rule, positions):
    if rule == "recurrent_delta" and positions == "rotary":
        positions = "none"  # its queries and keys are not of one size
    lm = model(rule, positions=positions)
    want = [by_whole_sequences(lm, prompt, 6) for prompt in PROMPTS]
    assert continuations(lm, PROMPTS, GREEDY) == want
    assert [continuations(lm, [prompt], GREEDY)[0] for prompt in PROMPTS] == want
    assert len({tuple(row) for row in want}) > 1


def test_a_long_prompt_is_read_in_parts(monkeypatch):
    lm, prompt = model(), [i * 7 % 13 for i in range(23)]
    want = by_whole_sequences(lm, prompt, 6)
    for size in (1, 4, 22, 100):
        monkeypatch.setattr("fwgen.models.generate.PREFILL", size)
        assert continuations(lm, [prompt], GREEDY) == [want]


def test_the_seed_decides_what_is_drawn():
    lm = model()
    one, same, other = (
        continuations(lm, PROMPTS, SamplingConfig(tokens=20, seed=seed)) for seed in (1, 1, 2)
    )
    assert one == same != other
    assert [len(row) for row in one] == [20] * 4


def test_nothing_is_drawn_for_no_tokens():
    assert continuations(model(), [[1]], SamplingConfig(tokens=0)) == [[]]


def test_prompts_must_not_be_empty():
    for prompts in ([], [[1], []]):
        with pytest.raises(fwgen.ArgumentError, match="prompt: expected at least one token"):
            next(generate(model(), prompts, GREEDY))


# --- sampling

PROBABILITIES = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2])


def frequencies(config, count=20_000):
    rows = PROBABILITIES.log().expand(count, 5)
    drawn = draw(rows, config, torch.Generator().manual_seed(0))
    return torch.bincount(drawn, minlength=5) / count


def expected(kept, temperature=1.0):
    scaled = PROBABILITIES ** (1 / temperature)
    scaled = torch.where(torch.tensor([i in kept for i in range(5)]), scaled, 0.0)
    return scaled / scaled.sum()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"temperature": 0.5}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 1}, {1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.3}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.9}, {0, 1, 3, 4}),
        ({"top_k": 3, "top_p": 0.6}, {1, 3}),
        ({"temperature": 0}, {1}),
    ],
)
def test_tokens_are_drawn_from_what_is_left_of_the_distribution(options, kept):
    config = SamplingConfig(**options)
    want = expected(kept, config.temperature or 1.0)
    # 20000 draws: five standard deviations are at most 0.018
    assert (frequencies(config) - want).abs().max() < 0.018
    assert set(frequencies(config).nonzero()[:, 0].tolist()) == kept


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": -1}, "tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
    ],
)
def test_wrong_sampling_is_refused(wrong, message):
    with pytest.raises(fwgen.ArgumentError, match=message):
        SamplingConfig(**wrong)


@pytest.mark.parametrize("text", ["naïve — 日本語 🙂 end", "🙂", "plain"])
def test_text_is_shown_in_whole_characters(text):
    for tokenizer in (Bytes(), Bpe.learn("naïve plain", 260)):
        printer, shown = Printer(tokenizer), []
        for token in tokenizer.encode(text).tolist():
            shown.append(printer.add(token))
            assert "�" not in shown[-1]
        assert "".join([*shown, printer.end()]) == text


def test_broken_characters_do_not_hold_the_text_up():
    printer = Printer(Bytes())
    shown = "".join(printer.add(token) for token in b"\xf0\x9f\xf0\x9fabc")
    assert shown.endswith("abc")


# --- commands


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    tiny = PRESETS["tiny"]
    preset = replace(
        tiny,
        model=replace(tiny.model, d_model=16, d_ff=32),
        run=LMRunConfig("bytes", batch=4, segment=16, eval_batch=4, eval_tokens=400),
        training=replace(tiny.training, steps=4, eval_every=2),
    )
    lm_task.run(AUSTEN, preset, folder)
    return folder


def test_train_eval_and_generate_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (
        f"train lm --data {AUSTEN} --preset tiny --rule sum --steps 3 --d-model 16 --eval-every 3"
    )
    words += " --batch 2 --segment 16 --eval-batch 2 --eval-tokens 99 --no-tensorboard --no-carry"
    assert cli.main([*words.split(), "--map", "phi=elu1(x)", "--positions", "rotary"]) == 0
    told, folder = capsys.readouterr().out.splitlines()
    assert folder == "runs/lm/austen/sum-elu1-x-tiny-seed1"
    assert told.startswith("sum [elu1(x)]: 3 steps (steps), ")
    assert cli.main(["eval", folder, "--context", "4,0", "--tokens", "100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["context"] for row in found["rows"]] == [4, 0]
    assert found["rows"][0]["loss"] != found["rows"][1]["loss"]
    assert cli.main(["eval", folder, "--tokens", "100", "--split", "test"]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split()[:2] == ["context", "loss"]
    assert row.split()[0] == "16"  # not carried in training: judged by segments
    assert cli.main([*words.split(), "--map", "phi=elu1(x)", "--positions", "rotary"]) == 2
    assert "--resume goes on with it, --overwrite replaces it" in capsys.readouterr().err


def test_generated_text_is_the_same_streamed_batched_and_as_json(trained, capsys):
    words = ["generate", str(trained), "--tokens", "12", "--temperature", "0"]
    assert cli.main([*words, "--prompt", "It is"]) == 0
    streamed = capsys.readouterr().out
    assert streamed.startswith("It is")
    assert cli.main([*words, "--prompt", "It is", "--prompt", "A", "--json"]) == 0
    texts = json.loads(capsys.readouterr().out)["texts"]
    assert texts[0] + "\n" == streamed
    assert texts[1].startswith("A")
    assert cli.main([*words, "--count", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("--- 1\n")
    assert "--- 2\n" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train lm --data nowhere", "found no nowhere"),
        ("train lm --data {austen} --preset huge", "preset: expected one of tiny"),
        ("train lm --data {austen} --tokenizer letters", "tokenizer"),
        ("train lm --data {austen} --heads 0", "heads"),
        ("train lm --data {austen} --lr -1", "lr: expected a positive number"),
        ("train lm --data {austen} --steps 0", "steps: expected at least 1"),
        ("train lm --data {austen} --cutoffs few", "--cutoffs"),
        ("train lm --data {austen} --batch 9999", "need 2559745 tokens"),
        ("train lm --data {austen} --device cuda:9", "device"),
        ("train lm --data {austen} --threads -1", "--threads"),
        ("eval nowhere", "found no nowhere"),
        ("eval {trained} --context many", "--context"),
        ("eval {trained} --split dev", "split"),
        ("eval {trained} --context 4 --stride 9", "stride"),
        ("eval {trained} --batch 0", "batch"),
        ("generate nowhere", "found no nowhere"),
        ("generate {trained} --count 0", "count"),
        ("generate {trained} --top-p 2", "top_p"),
    ],
)
def test_wrong_usage_is_told_in_a_line(words, message, trained, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = words.format(austen=AUSTEN, trained=trained).split()
    if arguments[0] == "train":
        arguments += ["--tokenizer", "bytes"] * ("--tokenizer" not in arguments)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
