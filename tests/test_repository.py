"""What must hold between the files of the repository."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fwgen

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "generated"
SHOWN = {"deltanet", "sum", "recurrent_delta"}
COMPILER = ("language", "ir", "algebra", "schedule", "emit", "runtime", "driver.py")
# Names that are also words of the language or of mathematics: only a string constant counts.
WORDS = {"sum", "delta"}


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fwgen", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


def committed() -> list[str]:
    return sorted(p.parent.name for p in GENERATED.glob("*/manifest.json"))


def test_the_packages_that_the_readme_shows_are_committed():
    assert set(committed()) >= SHOWN


@pytest.mark.parametrize("name", committed())
def test_generated_package_is_fresh(name):
    done = command("compile", name, "-o", "generated", "--check")
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("name", ["deltanet", "recurrent_delta"])
def test_same_rule_same_bytes_whatever_the_hash_seed(name, tmp_path):
    trees = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        done = command("compile", name, "-o", str(out), PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
        files = [p for p in out.rglob("*") if p.is_file()]
        trees.append({str(p.relative_to(out)): p.read_bytes() for p in files})
    assert trees[0].keys() == trees[1].keys()
    different = [n for n in trees[0] if trees[0][n] != trees[1][n]]
    assert not different


@pytest.mark.parametrize("name", committed())
def test_generated_files_name_no_machine(name):
    """No absolute path, and only the files that the manifest lists."""
    folder = GENERATED / name
    listed = set(json.loads((folder / "manifest.json").read_text())["files"])
    found = {p.name for p in folder.iterdir() if p.name != "__pycache__"}
    assert found - {"manifest.json"} == listed - {"manifest.json"}
    for path in folder.iterdir():
        if path.is_file():
            assert str(ROOT) not in path.read_text("utf-8"), path.name


def compiler_sources() -> list[Path]:
    found = [ROOT / "fwgen" / name for name in COMPILER]
    return sorted(p for top in found for p in ([top] if top.is_file() else top.rglob("*.py")))


def rule_names_in(text: str, names: set[str]) -> set[str]:
    return {name for name in names if re.search(rf"\b{name}\b", text)}


def constants_in(source: str) -> set[str]:
    nodes = ast.walk(ast.parse(source))
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


@pytest.mark.parametrize("path", compiler_sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_compiler_knows_no_rule_by_name(path):
    names, source = set(fwgen.list_rules()), path.read_text("utf-8")
    assert not rule_names_in(source, names - WORDS)
    # `sum` is a function of the language; a rule called so is looked up, never compared.
    assert not constants_in(source) & (names & WORDS - {"sum"})


@pytest.mark.parametrize(
    "path", sorted((ROOT / "templates").rglob("*.jinja")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_a_template_knows_no_rule_by_name(path):
    assert not rule_names_in(path.read_text("utf-8"), set(fwgen.list_rules()) - WORDS)


def test_the_search_for_names_finds_them():
    assert rule_names_in("{% if rule == 'deltanet' %}", {"deltanet", "gla"}) == {"deltanet"}
    assert not rule_names_in("gla_like", {"gla"})
    assert "delta" in constants_in("if name == 'delta': pass")
