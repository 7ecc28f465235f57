"""No message carries what steers a terminal: it is shown as an escape, and carets stay below."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fwgen
from fwgen import cli
from fwgen.errors import ArgumentError, Diagnostic, InternalError, RuleError, UnsupportedError

RULE = """\
name: NAME
doc: DOC
constants: {nu: 1}
inputs: {q: K, k: K, v: V}
state: {W: [V, F]}
feature_map: {phi(x): nu * x}
update: W = W + outer(v, phi(k))
output: OUTPUT
"""
SOUND = {"NAME": "printed", "DOC": "some words", "OUTPUT": "W @ phi(q)"}
# Controls of both sets, a mark, a turn of direction, breaks of lines, half of a character.
STRANGE = [*map(chr, range(9)), *map(chr, range(11, 32)), *map(chr, range(127, 161))]
STRANGE += ["\t", "\u200b", "\u202e", "\u2028", "\u2029", "\ufeff", "\ud800", "\U000e0001"]


def shown(error, character, count=1):
    """The message of an error, which has so many escapes of a character."""
    text = str(error)
    assert text.replace("\n", "").isprintable(), repr(text)
    assert text.count(escape(character)) >= count, repr(text)
    return text


def escape(character):
    return character.encode("unicode_escape").decode()


def written(path, **parts):
    text = RULE
    for name, part in {**SOUND, **parts}.items():
        text = text.replace(name, part)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


@pytest.mark.parametrize("character", STRANGE, ids=ascii)
def test_a_character_of_a_rule(character, tmp_path):
    """In the text itself, and as an escape of YAML."""
    path = tmp_path / "rule.yaml"
    quoted = json.dumps(f"a{character}b")
    for parts in ({"NAME": quoted}, {"OUTPUT": quoted}):
        with pytest.raises(RuleError) as error:
            fwgen.load_rule(written(path, **parts))
        text = str(error.value)
        assert text.replace("\n", "").isprintable(), repr(text)
        source, marks = text.splitlines()[1:3]
        assert source[marks.index("^") - 1 :].startswith('"') or "a" in source
    for part in SOUND:
        try:
            rule = fwgen.load_rule(written(path, **{part: f"a{character}b"}))
        except RuleError as error:
            if character != "\ud800":  # that file is no UTF-8
                shown(error, character)
        else:
            assert part == "DOC" and rule.summary.isprintable()


@pytest.mark.parametrize("character", STRANGE, ids=ascii)
def test_a_character_of_an_argument(character):
    word = f"a{character}b"
    for call in (
        lambda: fwgen.load_rule(word),
        lambda: fwgen.load_rule(Path(word)),
        lambda: fwgen.load_rule("sum", set={word: 1}),
        lambda: fwgen.load_rule("sum", maps={word: "x"}),
        lambda: fwgen.load_rule("sum", maps={"phi": word}),
        lambda: fwgen.load_rule("sum", **{word: 1}),
        lambda: fwgen.compile("sum")(**{word: torch.ones(2)}),
        lambda: fwgen.compile("sum").plan(**{word: torch.ones(2)}),
    ):
        with pytest.raises((RuleError, ArgumentError)) as error:
            call()
        if character != "\ud800":  # half of a character is a question mark in a formula
            shown(error.value, character)
        assert str(error.value).replace("\n", "").isprintable()


@pytest.mark.parametrize("kind", [RuleError, ArgumentError, UnsupportedError, InternalError])
def test_every_error(kind):
    error = kind("a\x1b[2J\x00\nb\u202e")
    assert str(error) == "a\\x1b[2J\\x00\nb\\u202e"
    assert type(error)(str(error)).args == error.args


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\x9b", "\u202e", "\t", "\x7f"], ids=ascii)
def test_a_character_of_the_command_line(character, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    word = f"a{character}b"
    for arguments in (
        [word],
        ["explain", "sum", f"--{word}"],
        ["explain", word],
        ["explain", f"{word}.yaml"],
        ["explain", "sum", word],
        ["explain", "sum", "--set", f"{word}=1"],
        ["explain", "sum", "--set", word],
        ["explain", "sum", "--map", f"{word}=1"],
        ["explain", "sum", "--map", f"phi={word}"],
        ["explain", "sum", "--stage", word],
        ["explain", "sum", "--format", word],
        ["compile", "sum", "--name", word],
        ["compile", "sum", "--target", word],
        ["compile", "sum", "--check", "-o", word],
        ["check", "sum", "--backend", word],
        ["check", "sum", "--cases", word],
        ["bench", "sum", "--shape", word],
        ["bench", "sum", "--against", word],
        ["new", word],
        ["new", "sound", "--from", word],
    ):
        assert cli.main(arguments) in (1, 2), arguments
        err = capsys.readouterr().err
        assert err.replace("\n", "").isprintable(), (arguments, err)
        assert escape(character) in err or character == "\t", (arguments, err)


def test_warnings(capsys, tmp_path):
    path = written(tmp_path / "a\x1bb.yaml")
    path.write_text(path.read_text().replace("{q: K,", "{unused: K, q: K,"))
    assert cli.main(["explain", str(path)]) == 0
    err = capsys.readouterr().err
    assert "a\\x1bb.yaml:" in err and "warning" in err and err.replace("\n", "").isprintable()


def test_the_caret_stands_below_escapes():
    source = "\x1b[1mW = W +\x00\t kay \u2028"
    fault = Diagnostic("f", 3, source.index("kay") + 1, "unknown", source, 3)
    line, marks = str(fault).splitlines()[1:]
    assert line == "    3 | \\x1b[1mW = W +\\x00\\t kay \\u2028"
    assert line[marks.index("^") : marks.rindex("^") + 1] == "kay"
    fault = Diagnostic("f", 3, source.index("\x00") + 1, "not allowed", source)
    line, marks = str(fault).splitlines()[1:]
    assert line[marks.index("^") : marks.rindex("^") + 1] == "\\x00"
    behind = Diagnostic("f", 3, len(source) + 1, "missing", source)
    line, marks = str(behind).splitlines()[1:]
    assert marks.index("^") == marks.rindex("^") == len(line)
    long = Diagnostic("f", 3, 500, "far", "\x00" * 499 + "here" + "\x00" * 400, 4)
    line, marks = str(long).splitlines()[1:]
    assert line[marks.index("^") : marks.rindex("^") + 1] == "here"


@pytest.mark.parametrize("character", STRANGE[:4] + STRANGE[20:60:5] + ["\u202e", '"""', "\\"])
def test_documentation_of_any_text(character, tmp_path, capsys):
    """A package of it can be imported, and no page that shows it steers a terminal."""
    path = written(tmp_path / "rule.yaml", DOC=json.dumps(f"some{character}words{character}"))
    assert fwgen.load_rule(path).doc == f"some{character}words{character}"
    for form in ("text", "markdown", "latex", "json"):
        assert cli.main(["explain", str(path), "--format", form]) == 0
        assert capsys.readouterr().out.replace("\n", "").isprintable(), form
    assert cli.main(["compile", str(path), "-o", str(tmp_path), "--target", "cpu"]) == 0
    for file in (tmp_path / "printed").iterdir():
        text = file.read_text("utf-8")
        assert text.replace("\n", "").isprintable(), file
        if file.suffix == ".py":
            compile(text, file.name, "exec")


def test_a_fault_of_ours(capsys, monkeypatch):
    def broken(*_):
        raise KeyError("a\x1b[2J")

    monkeypatch.setattr(cli, "parser", lambda arguments: Broken(broken))
    assert cli.main(["explain", "x\x1b[2J"]) == 3
    err = capsys.readouterr().err
    assert "arguments explain 'x\\x1b[2J'" in err and "\x1b" not in err


class Broken:
    """A parser whose command fails."""

    def __init__(self, run):
        self.run = run

    def parse_known_args(self, arguments):
        return self, []


def test_a_pipe_sees_no_control_sequences(tmp_path):
    """As `test_a_character_of_the_command_line`, from outside."""
    command = [sys.executable, "-m", "fwgen", "explain", "a\x1b[31mb"]
    found = subprocess.run(command, capture_output=True, cwd=tmp_path)
    assert found.returncode == 2 and b"\x1b" not in found.stderr and b"\\x1b" in found.stderr
