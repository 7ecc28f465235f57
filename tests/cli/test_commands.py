"""The command line: exit codes, where messages go, and what each command prints."""

from __future__ import annotations

import json
import time
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


@pytest.fixture
def torch() -> Any:
    """PyTorch, loaded; `check` then works in this process, where its output can be seen."""
    import torch

    return torch


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
        ["new", "class"],
        ["explain", "."],
        ["explain", ""],
        ["explain", "my_delta.yaml", "--json", "--format", "latex"],
        ["explain", "my_delta.yaml", "--stage", "last"],
        ["compile", "my_delta.yaml", "--name", "class"],
        ["compile", "my_delta.yaml", "--aot", "sm_90", "--target", "cpu"],
        ["compile", "my_delta.yaml", "--set", "rate=nan"],
        ["bench", "my_delta.yaml", "--against", ""],
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
    code, out, _ = run(capsys, "compile", rule.name, "--out", "kernels", "--json")
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
    assert r"\begin{align*}" in document["latex"]


STAGES = ("language", "step", "backward", "normal", "chunk")


def test_explain_stages(rule: Path, capsys: Any) -> None:
    texts = set()
    for stage in STAGES:
        code, out, _ = run(capsys, "explain", rule.name, "--stage", stage)
        assert code == 0 and out.strip()
        texts.add(out)
        _, again, _ = run(capsys, "explain", rule.name, "--stage", stage, "--json")
        assert json.loads(again)["text"] == out
        _, fenced, _ = run(capsys, "explain", rule.name, "--stage", stage, "--format", "markdown")
        assert fenced.split("\n", 1)[1] == out + "```\n"
        _, tex, _ = run(capsys, "explain", rule.name, "--stage", stage, "--format", "latex")
        assert tex == f"\\begin{{verbatim}}\n{out}\\end{{verbatim}}\n"
    assert len(texts) == len(STAGES)


def test_the_chunk_stage_says_why_there_is_none(rule: Path, capsys: Any) -> None:
    _, out, _ = run(capsys, "explain", rule.name, "--stage", "chunk")
    assert "not yet" in out and "no kernels are generated" in out
    rule.write_text(DELTA.replace("update: W = W", "update: W = tanh(W)"), encoding="utf-8")
    _, out, _ = run(capsys, "explain", rule.name, "--stage", "chunk")
    assert "illegal: tanh(W)" in out and "(line 9)" in out


def test_explain_names_what_forbids_the_chunk_form(rule: Path, capsys: Any) -> None:
    rule.write_text(DELTA.replace("update: W = W", "update: W = tanh(W)"), encoding="utf-8")
    _, out, _ = run(capsys, "explain", rule.name, "--format", "json")
    chunk = json.loads(out)["forms"]["chunk"]
    assert chunk["legal"] is False and "tanh(W)" in chunk["reason"] and chunk["line"] == 9


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["compil"], "did you mean `compile`?"),
        (["explain", "x.yaml", "--formt", "text"], "did you mean `--format`?"),
        (["explain", "x.yaml", "--stage", "backwards"], "did you mean `backward`?"),
        (["explain", "gated_dleta"], "did you mean `gated_delta`?"),
        (["explain", "my_delta.yaml", "--map", "phy=x"], "did you mean `phi`?"),
        (["explain", "my_delta.yaml", "--set", "rat=2"], "did you mean `rate`?"),
        (["new", "mine.yaml"], "did you mean `mine`?"),
        ([], "`fwgen --help`"),
        (["compile"], "`fwgen compile --help`"),
    ],
    ids=str,
)
def test_a_mistyped_word_has_a_hint(
    arguments: list[str], hint: str, rule: Path, capsys: Any
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code in (1, 2) and not out and hint in err


def test_unreadable_files(rule: Path, capsys: Any) -> None:
    Path("folder.yaml").mkdir()
    for name in ("folder.yaml", "none.yaml", "none/at/all.yaml"):
        code, out, err = run(capsys, "compile", name)
        assert code == 2 and not out and name in err
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    Path("empty.yaml").write_bytes(b"")
    for name in ("binary.yaml", "empty.yaml"):
        code, out, err = run(capsys, "compile", name)
        assert code == 1 and not out and err.startswith(f"{name}:1:1: error:")


def test_what_was_asked_and_cannot_run_is_no_pass(rule: Path, capsys: Any, torch: Any) -> None:
    asked = ["--backend", "reference,cpu", "--form", "chunk", "--cases", "1"]
    code, out, err = run(capsys, "check", rule.name, *asked)
    assert code == 1 and "NOT CHECKED" in out and "passed" not in out
    lines = err.splitlines()
    assert len(lines) == 2 and all(line.startswith("fwgen: not checked: ") for line in lines)
    assert all("--form recurrent" in line and 'form="' not in line for line in lines)
    code, out, _ = run(capsys, "check", rule.name, *asked, "--json")
    found = json.loads(out)
    assert code == 1 and not found["passed"] and found["failing"] is None and not found["rows"]
    assert len(found["refused"]) == 2 and "no kernels of the chunk form" in found["refused"][0]


def test_json_is_one_document(rule: Path, capsys: Any, torch: Any) -> None:
    """Whatever happens meanwhile goes to stderr."""
    rule.write_text(DELTA.replace("v: V,", "v: V, spare: K,"), encoding="utf-8")
    for arguments in (
        ["compile", rule.name, "--check"],
        ["compile", rule.name],
        ["compile", rule.name, "--check"],
        ["explain", rule.name],
        ["explain", rule.name, "--stage", "step"],
        ["check", rule.name, "--backend", "reference", "--cases", "1"],
        ["check", rule.name, "--backend", "reference", "--form", "chunk", "--cases", "1"],
        ["bench", rule.name, "--static"],
        ["bench", rule.name, "--shape", "1,8,1,4,4", "--rounds", "1", "--against", "loop"],
    ):
        _, out, err = run(capsys, *arguments, "--json")
        assert isinstance(json.loads(out), dict)
        assert "spare" in err, "the warning about the unused input is missing"


def test_new_keeps_comments(rule: Path, capsys: Any) -> None:
    rule.write_text(DELTA.replace("state:", "state:  # carried"), encoding="utf-8")
    assert run(capsys, "new", "fresh", "--from", rule.name)[0] == 0
    text = Path("fresh.yaml").read_text(encoding="utf-8")
    assert "# carried" in text and fwgen.load_rule(Path("fresh.yaml")).name == "fresh"
    rule.write_text(DELTA.replace("name: my_delta", '"name": my_delta'), encoding="utf-8")
    assert run(capsys, "new", "other", "--from", rule.name)[0] == 0
    assert fwgen.load_rule(Path("other.yaml")).name == "other"


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


def test_doctor_tries_to_write(capsys: Any, monkeypatch: Any) -> None:
    """Where nothing forbids it, and still no folder can be made."""
    monkeypatch.setenv("FWGEN_CACHE_DIR", "/proc/nowhere")
    _, out, _ = run(capsys, "doctor")
    assert "/proc/nowhere (not writable)" in out


def test_doctor_names_what_is_missing(capsys: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("FWGEN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").write_text("", encoding="utf-8")
    code, out, _ = run(capsys, "doctor")
    assert code == 0 and "missing" in out and "set CXX" in out and "set FWGEN_CACHE_DIR" in out


def test_bench_says_what_takes_long(rule: Path, capsys: Any) -> None:
    shape = ["--shape", "1,16,1,4,4", "--rounds", "2"]
    _, _, err = run(capsys, "bench", rule.name, *shape)
    assert "2 rounds of fwgen, softmax, loop" in err and "is slow" in err
    _, _, err = run(capsys, "bench", rule.name, *shape, "--against", "chunk")
    assert "no contender `chunk`" in err and "loop" not in err


def test_bench_of_a_slow_contender_ends_early(torch: Any) -> None:
    from fwgen.bench.timing import Contender, interleaved

    calls = {"slow": 0, "quick": 0}

    def contender(name: str, seconds: float) -> Contender:
        def work(inputs: dict[str, Any]) -> Any:
            calls[name] += 1
            time.sleep(seconds)
            return inputs["x"]

        return Contender(work, {"x": torch.ones(1)}, torch.ones(1), rounds=3, seconds=0.05)

    found = interleaved({"slow": contender("slow", 0.06), "quick": contender("quick", 0)}, 7)
    assert calls == {"slow": 2, "quick": 6} and set(found) == {
        (name, backward) for name in calls for backward in (False, True)
    }


def test_bench(rule: Path, capsys: Any) -> None:
    shape = ["--shape", "1,32,2,8,4", "--rounds", "1"]
    code, out, _ = run(capsys, "bench", rule.name, *shape, "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and {r["contender"] for r in rows} == {"fwgen", "loop", "softmax"}
    assert all(r["ms"] > 0 and r["ratio"] > 0 for r in rows)
    code, out, _ = run(capsys, "bench", rule.name, *shape, "--static", "--json")
    (bounds,) = json.loads(out)["rules"]
    assert code == 0 and bounds["F+B"]["flops"] > bounds["F"]["flops"] > 6 * 8 * 4


@pytest.mark.parametrize("pair", [("--map", "phi=elu(x)"), ("--set", "nu=2")])
def test_a_name_is_given_once(pair: tuple[str, str], capsys: Any) -> None:
    code, _, err = run(capsys, "explain", "deltanet", *pair, *pair)
    assert code == 2 and f"`{pair[1].split('=')[0]}` is given twice" in err
