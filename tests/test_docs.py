"""The documentation shows what the commands print, and its code runs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.M | re.S)


def python(*arguments: str | Path, cwd: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"FWGEN_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def examples(tmp_path) -> Path:
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "examples")
    return tmp_path / "examples"


def test_outputs_in_the_documentation_are_fresh(tmp_path):
    done = python(ROOT / "docs" / "dumps.py", "--check", cwd=ROOT, cache=tmp_path)
    assert done.returncode == 0, done.stderr


def test_python_of_the_readme_runs(examples, tmp_path):
    found = blocks("python")
    assert len(found) >= 2
    script = examples / "readme.py"
    script.write_text("\n".join(found), "utf-8")
    done = python(script, cwd=examples, cache=tmp_path)
    assert done.returncode == 0, done.stderr


def commands() -> list[str]:
    """`fwgen` lines of the README but for training and timing, which have tests of their own."""
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if re.match(r"fwgen (?!train|plot|bench|check)", line)]


def test_commands_of_the_readme_run(examples, tmp_path):
    found = commands()
    assert len(found) >= 4
    for line in found:
        done = python("-m", "fwgen", *shlex.split(line)[1:], cwd=examples, cache=tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("target", ["install", "demo", "test", "bench", "docs"])
def test_make_knows_the_target(target):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_links_lead_to_files(page):
    text = (ROOT / page).read_text("utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / link).exists(), link
