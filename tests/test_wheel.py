"""The wheel, installed where nothing of this repository can be seen, compiles a rule."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("fwgen", "models", "templates")

USE = """
import pathlib, sys
import torch
import fwgen

assert pathlib.Path(fwgen.__file__).is_relative_to(sys.prefix), fwgen.__file__
op = fwgen.compile("deltanet")
q, k, v, beta = (torch.randn(1, 9, 2, *dims) for dims in ((5,), (5,), (3,), ()))
beta = beta.sigmoid().requires_grad_()
y, _ = op(q, k, v, beta)
y.sum().backward()
want, _ = op.reference(q, k, v, beta)
torch.testing.assert_close(y, want)
assert beta.grad.isfinite().all()
import fwgen.models
"""


def run(*command: str | Path, **options) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that no build folder is left here and no stray file gets in."""
    copy = tmp_path_factory.mktemp("source")
    for part in PARTS:
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    out = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", out, copy)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory) -> Path:
    """`bin` of an environment with the wheel; torch and the rest are borrowed by path.

    A folder on the path has its own `.pth` files ignored, so the editable install stays out.
    """
    home = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    (site,) = (home / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    return home / "bin"


def test_the_wheel_holds_every_source_rule_and_template(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    for part in PARTS:
        inside = "fwgen" if part == "fwgen" else f"fwgen/{part}"
        for path in (ROOT / part).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"{inside}/{path.relative_to(ROOT / part).as_posix()}" in held


def test_no_package_is_listed_that_does_not_exist():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for name in listed["packages"]:
        top, *rest = name.split(".")
        folder = Path(*rest) if rest[:1] in (["models"], ["templates"]) else Path(top, *rest)
        assert (ROOT / folder).is_dir(), name


@pytest.fixture
def elsewhere(tmp_path) -> dict:
    """Working folder and environment that do not show this repository."""
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
    return {"cwd": tmp_path, "env": environment | {"FWGEN_CACHE_DIR": str(tmp_path / "cache")}}


def test_the_installed_package_compiles_a_rule_and_its_gradient(clean, elsewhere):
    run(clean / "python", "-c", USE, **elsewhere)


def test_the_installed_command_writes_a_package(clean, elsewhere):
    run(clean / "fwgen", "compile", "deltanet", "-o", "out", **elsewhere)
    assert (elsewhere["cwd"] / "out" / "deltanet" / "manifest.json").is_file()
