"""Generated files start with their rule, its hash and the command that makes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fwgen.commands.package import package_files
from fwgen.driver import Compilation, compile_rule
from fwgen.emit.heading import compile_command, headed
from fwgen.language import load_rule


@pytest.mark.parametrize(
    ("constants", "maps", "options", "wanted"),
    [
        ({}, {}, (), "fwgen compile delta"),
        ({"nu": 2, "c": 0.5}, {}, (), "fwgen compile delta --set c=0.5 --set nu=2"),
        ({}, {"phi": "elu(x) + 1"}, (), "fwgen compile delta --map 'phi=elu(x) + 1'"),
        ({}, {}, ("--target", "cpu"), "fwgen compile delta --target cpu"),
    ],
)
def test_command(constants: dict, maps: dict, options: tuple, wanted: str) -> None:
    assert compile_command("delta", constants, maps, options) == wanted


@pytest.mark.parametrize(
    "body", ["r = relu(x)\nr * r", "x\r\n+ x", 'einsum("i,i->", x, x)', "it's", "a\\\n'b'", "é"]
)
def test_a_shell_reads_the_command_back_and_it_is_one_line(body: str) -> None:
    command = compile_command("delta", maps={"phi": body})
    assert command.isprintable()
    done = subprocess.run(
        ["bash", "-c", command.replace("fwgen compile delta --map", "printf %s")],
        capture_output=True,
        text=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert done.stdout.encode() == f"phi={body}".encode().replace(b"\r\n", b"\n") or (
        done.stdout == f"phi={body}"
    )


def test_a_line_break_in_a_map_cannot_leave_the_comment() -> None:
    command = compile_command("delta", maps={"phi": "x\n#error\n"})
    text = headed({"cpu.cpp": "int x;\n"}, "delta", "abc", command)["cpu.cpp"]
    *head, code = text.splitlines()
    assert code == "int x;" and all(line.startswith("//") for line in head)


def package(made: Compilation, name: str, maps: dict[str, str]) -> dict[str, str]:
    return package_files(
        made, name, targets=("cpu", "triton"), constants={}, maps=maps, standalone=False
    )


@pytest.mark.parametrize("name", ["gated_delta", "mlstm", "srwm"])
def test_every_generated_file_starts_with_rule_hash_and_command(name: str) -> None:
    maps = {"phi": "x * 2"} if name == "mlstm" else {}
    rule = load_rule(name, maps=maps)
    made = compile_rule(rule, maps=maps)
    command = compile_command(name, maps=maps)
    for file, text in package(made, name, maps).items():
        start = "".join(text.splitlines(keepends=True)[:12])
        if file == "rule.yaml":
            assert start.startswith(f"name: {name}\n")
        elif file == "manifest.json":
            assert f'"rule": "{name}"' in start and rule.hash in start
        elif file == "REPORT.md":
            assert start.startswith(f"# {name}\n") and rule.hash in start and command in start
        else:
            mark = "//" if file.endswith(".cpp") else "#"
            assert text.startswith(f"{mark} The rule {name}, hash {rule.hash}.\n"), file
            assert text.splitlines()[1].startswith(f"{mark} Made by `{command}`"), file


@pytest.mark.parametrize("file", ["cpu.cpp", "reference.py", "triton_recurrent.py"])
def test_the_equations_follow_the_head(file: str) -> None:
    text = compile_rule(load_rule("deltanet")).sources[file]
    top = text[: text.index("import torch" if file.endswith(".py") else "using real")]
    for equation in (
        "n = sum_i square(k[i])",
        "p[i] = sum_j W[i, j] * kf[j]",
        "W_1[i, j] = ",
    ):
        assert equation in top


def test_no_path_in_any_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(load_rule("sum").to_yaml().replace("name: sum", "name: mine"), encoding="utf-8")
    for text in package(compile_rule(load_rule(path)), "mine", {}).values():
        assert str(tmp_path) not in text and "mine.yaml" not in text
