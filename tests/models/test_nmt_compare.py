"""Translators side by side: the plan, the tables, going on where it was."""

import csv
import json

import pytest

from fwgen.models import nmt_compare
from fwgen.models.data import numbers

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


@pytest.fixture
def corpora(tmp_path):
    """The number words twice, in both directions."""
    for name, languages in (("there", ("en", "de")), ("back", ("de", "en"))):
        (tmp_path / name).mkdir()
        for split, count in (("train", 100), ("valid", 10), ("test", 6)):
            for language, lines in zip(("en", "de"), numbers.pairs(split), strict=True):
                ending = dict(zip(("en", "de"), languages, strict=True))[language]
                file = tmp_path / name / f"{split}.{ending}"
                file.write_text("".join(f"{line}\n" for line in lines[:count]))
    return [tmp_path / "there", tmp_path / "back"]


def test_tables_are_written_and_nothing_is_trained_twice(corpora, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    command = [*map(str, corpora), "--minutes", "0.02", "--rows", "linear,delta-memory"]
    command += ["--preset", "tiny", "--batch-tokens", "300", "--out", str(out)]
    assert nmt_compare.main(command) == 0
    shown = capsys.readouterr().out
    assert (out / "results.md").read_text() in shown
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert [(row["corpus"], row["model"]) for row in rows] == [
        (corpus, model) for corpus in ("there", "back") for model in ("linear", "delta-memory")
    ]
    plan = json.loads((out / "plan.json").read_text())
    for row in rows:
        assert int(row["steps"]) == plan[row["corpus"]] >= 1
        assert row["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
        assert float(row["valid_perplexity"]) > 1
        translations = (out / row["corpus"] / row["model"] / "test.txt").read_text()
        assert translations.count("\n") == 6
    assert rows[0]["bleu_26_inf"] == ""  # no sentence is that long
    assert shown.count("sacreBLEU signature: `nrefs:1|") == 2
    assert "| delta-memory |" in shown

    monkeypatch.setattr(nmt_compare, "run", lambda *_, **__: pytest.fail("trained again"))
    assert nmt_compare.main(command) == 0
    assert capsys.readouterr().out.startswith("1 + 1 layers, 64 features")
    (out / "there/linear/scores.json").unlink()
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        nmt_compare.main(command)


def test_an_interrupted_comparison_says_how_to_go_on(corpora, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(nmt_compare, "run", lambda *_, **__: {"stopped": "interrupted"})
    command = [str(corpora[0]), "--steps", "3", "--out", str(tmp_path / "out")]
    assert nmt_compare.main(command) == 130
    assert "the same command goes on from here" in capsys.readouterr().err
    assert nmt_compare.main([*command, "--rows", "linear,cubic"]) == 2
    assert "rows: expected one of softmax, linear" in capsys.readouterr().err
