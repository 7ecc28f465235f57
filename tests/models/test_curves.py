"""Figures and tables of language models, from the files that training and evaluation leave."""

import json

import pytest

from fwgen.models import cli, curves
from fwgen.models.figures import load_results


def run_of(name, perplexities, task="lm"):
    history = [
        {"step": 10 * (i + 1), "loss": 1.0, "perplexity": p} for i, p in enumerate(perplexities)
    ]
    return {
        "task": task,
        "name": name,
        "config": {},
        "parameters": 1234567,
        "steps": 10 * len(history),
        "stopped": "steps",
        "tokens_per_second": 4321,
        "train_seconds": 90.0,
        "history": history,
        "last": history[-1],
    }


def evaluation_of(name, by_context):
    rows = [{"context": c, "perplexity": p} for c, p in by_context.items()]
    return {"task": "lm", "name": name, "rows": rows}


@pytest.fixture
def folder(tmp_path):
    for name, result in {
        "one": run_of("delta", [30.0, 12.5, None]),
        "two": run_of("softmax", [28.0, 11.25, 11.5]),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(result))
    found = evaluation_of("delta", {1024: 12.0, 0: 11.0, 64: 20.0})
    (tmp_path / "delta.json").write_text(json.dumps(found))
    found = evaluation_of("softmax", {64: 19.0})
    (tmp_path / "softmax.json").write_text(json.dumps(found))
    return tmp_path


def test_runs_and_contexts_come_in_one_table_and_one_picture(folder, capsys):
    paths = [str(folder), str(folder / "delta.json"), str(folder / "softmax.json")]
    picture = folder / "lm.png"
    assert cli.main(["plot", *paths, "-o", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [line.split() for line in lines]
    assert cells[2] == ["delta", "1,234,567", "30", "steps", "12.50", "4,321", "1.5"]
    assert cells[3][4] == "11.25"
    assert lines[5].split("context ")[1:] == ["64  ", "1024  ", "all"]
    assert cells[7] == ["delta", "20.00", "12.00", "11.00"]
    assert cells[8] == ["softmax", "19.00", "-", "-"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


def test_contexts_alone(folder):
    results = load_results([folder / "delta.json"])
    curves.plot(results, folder / "contexts.svg")
    assert (folder / "contexts.svg").stat().st_size > 5000
    assert curves.table(results).count("\n") == 2


def test_runs_of_different_tasks_are_not_mixed(folder, capsys):
    (folder / "one" / "results.json").write_text(json.dumps(run_of("delta", [1.0], "nmt")))
    assert cli.main(["plot", str(folder)]) == 2
    assert "runs of one task, found lm, nmt" in capsys.readouterr().err
