"""The command line: exit codes, where messages go, and what each command prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fwgen
from fwgen import cli

DELTA = """\
name: my_delta
doc: A delta rule.
constants: {rate: 1}
inputs: {q: K, k: K, v: V, beta: scalar}
state:
  W: [V, K]
feature_map:
  phi(x): rate * x
update: W = W + sigmoid(beta) * outer(v - W @ phi(k), phi(k))
output: W @ phi(q)
"""
COMMANDS = ["compile", "explain", "check", "bench", "list", "new", "doctor"]


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my_delta.yaml"
    path.write_text(DELTA, encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["compil"],
        ["compile"],
        ["compile", "x.yaml", "--nonsense"],
        ["compile", "x.yaml", "--target", "fortran"],
        ["compile", "x.yaml", "--set", "nu"],
        ["compile", "x.yaml", "--map", "phi="],
        ["explain", "x.yaml", "--format", "pdf"],
        ["check", "x.yaml", "--cases", "0"],
        ["bench", "x.yaml", "--shape", "1,2,3"],
        ["compile", "missing.yaml"],
        ["explain", "no_such_rule"],
        ["new", "Capital"],
    ],
    ids=str,
)
def test_wrong_usage(arguments: list[str], rule: Path, capsys: Any) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2 and not out and err.strip() and "Traceback" not in err


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_reads_like_a_manual(command: str, capsys: Any) -> None:
    code, out, _ = run(capsys, *command.split(), "--help")
    assert code == 0 and len(out.splitlines()) > 8
    assert "example:" in out or not command


def test_version(capsys: Any) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0 and fwgen.__version__ in out


def test_faulty_rule_is_exit_1_with_its_place(rule: Path, capsys: Any) -> None:
    rule.write_text(DELTA.replace("W @ phi(q)", "W @ phi(p)"), encoding="utf-8")
    code, out, err = run(capsys, "compile", rule.name)
    assert code == 1 and not out
    assert err.startswith("my_delta.yaml:10:") and "^" in err
    assert not Path("generated").exists()


def test_fault_of_ours_is_exit_3(rule: Path, capsys: Any, monkeypatch: Any) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("W_7")

    monkeypatch.setattr("fwgen.commands.explain.open_rule", broken)
    code, out, err = run(capsys, "explain", rule.name)
    assert code == 3 and not out
    assert "not of your rule" in err and "attach" in err and "W_7" in err


def test_compile_json(rule: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, "compile", rule.name, "-o", "kernels", "--json")
    document = json.loads(out)
    assert code == 0 and document["name"] == "my_delta"
    assert document["targets"] == ["cpu", "triton"] and document["forms"][0] == "recurrent"
    found = {p.relative_to("kernels/my_delta").as_posix() for p in Path("kernels").rglob("*.*")}
    assert found == set(document["files"])
    assert document["lines"] == sum(
        (Path("kernels/my_delta") / f).read_text(encoding="utf-8").count("\n") for f in found
    )


def test_explain_formats(rule: Path, capsys: Any) -> None:
    for form in ("text", "markdown", "latex"):
        code, out, _ = run(capsys, "explain", rule.name, "--format", form)
        assert code == 0 and "W" in out and len(out.splitlines()) > 10
    code, out, _ = run(capsys, "explain", rule.name, "--json")
    document = json.loads(out)
    assert document["transitions"]["W"]["class"] == "identity plus low rank"
    assert document["state_elements"] == "K*V"
    assert r"\begin{align}" in document["latex"]


def test_explain_stages(rule: Path, capsys: Any) -> None:
    texts = set()
    for stage in ("language", "step", "backward", "normal", "chunk"):
        code, out, _ = run(capsys, "explain", rule.name, "--stage", stage)
        assert code == 0 and out.strip()
        texts.add(out)
    assert len(texts) == 5


def test_explain_names_what_forbids_the_chunk_form(rule: Path, capsys: Any) -> None:
    rule.write_text(DELTA.replace("update: W = W", "update: W = tanh(W)"), encoding="utf-8")
    _, out, _ = run(capsys, "explain", rule.name, "--format", "json")
    chunk = json.loads(out)["forms"]["chunk"]
    assert chunk["legal"] is False and "tanh(W)" in chunk["reason"] and chunk["line"] == 9


def test_new_never_overwrites(rule: Path, capsys: Any) -> None:
    assert run(capsys, "new", "fresh", "--from", rule.name)[0] == 0
    text = Path("fresh.yaml").read_text(encoding="utf-8")
    assert fwgen.load_rule(Path("fresh.yaml")).name == "fresh"
    code, out, err = run(capsys, "new", "fresh")
    assert code == 1 and not out and "fresh.yaml" in err
    assert Path("fresh.yaml").read_text(encoding="utf-8") == text


def test_new_scaffold_compiles(rule: Path, capsys: Any) -> None:
    assert run(capsys, "new", "scaffold")[0] == 0
    assert fwgen.load_rule(Path("scaffold.yaml")).warnings == ()
    assert run(capsys, "explain", "scaffold.yaml")[0] == 0


def test_doctor(capsys: Any) -> None:
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    assert {"torch", "triton", "g++"} <= set(out.lower().split())


def test_list(capsys: Any) -> None:
    code, out, _ = run(capsys, "list")
    assert code == 0 and set(fwgen.list_rules()) <= set(out.split())
    code, table, _ = run(capsys, "list", "--table")
    assert code == 0 and len(table.splitlines()) == 1 + len(fwgen.list_rules())


def test_bench(rule: Path, capsys: Any) -> None:
    shape = ["--shape", "1,32,2,8,4", "--rounds", "1"]
    code, out, _ = run(capsys, "bench", rule.name, *shape, "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and {r["contender"] for r in rows} == {"fwgen", "loop", "softmax"}
    assert all(r["ms"] > 0 and r["ratio"] > 0 for r in rows)
    code, out, _ = run(capsys, "bench", rule.name, *shape, "--static", "--json")
    (bounds,) = json.loads(out)["rules"]
    assert code == 0 and bounds["F+B"]["flops"] > bounds["F"]["flops"] > 6 * 8 * 4
