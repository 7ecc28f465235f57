"""The generated package: deterministic, checked, atomic, and never at the cost of other files."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from fwgen.cli import main
from fwgen.commands.package import differences, read_manifest, write_package
from fwgen.errors import ArgumentError

RULE = """\
name: small
constants: {nu: 1}
inputs: {k: K, v: V}
state:
  W: [V, K]
feature_map:
  phi(x): nu * relu(x)
update: W = W + outer(v, phi(k))
output: W @ k
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(RULE, encoding="utf-8")
    return tmp_path / "generated" / "small"


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}


def package(*changes: str) -> dict[str, str]:
    manifest = json.dumps({"generator": "fwgen", "files": ["a.py", "manifest.json", *changes]})
    return {"a.py": "one\n", "manifest.json": manifest, **dict.fromkeys(changes, "x\n")}


def test_fresh_then_damaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "small.yaml", "--check"]) == 1
    assert not folder.exists()
    assert main(["compile", "small.yaml"]) == 0
    before = tree(folder)
    assert main(["compile", "small.yaml", "--check"]) == 0
    (folder / "reference.py").write_text("# mine\n", encoding="utf-8")
    capsys.readouterr()
    assert main(["compile", "small.yaml", "--check"]) == 1
    assert "reference.py differs" in capsys.readouterr().err
    (folder / "reference.py").unlink()
    assert main(["compile", "small.yaml", "--check"]) == 1
    assert "reference.py is missing" in capsys.readouterr().err
    assert main(["compile", "small.yaml"]) == 0
    assert tree(folder) == before


def test_check_uses_recorded_settings(folder: Path) -> None:
    options = ["--set", "nu=2", "--map", "phi=nu * x", "--target", "cpu"]
    assert main(["compile", "small.yaml", *options]) == 0
    assert not list(folder.glob("triton_*"))
    assert main(["compile", "small.yaml", "--check"]) == 0
    assert main(["compile", "small.yaml", "--check", "--set", "nu=3"]) == 1
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest["set"] == {"nu": 2} and manifest["maps"] == {"phi": "nu * x"}


def test_no_paths_and_no_temporary_folders(folder: Path, tmp_path: Path) -> None:
    assert main(["compile", str(tmp_path / "small.yaml"), "--name", "other"]) == 0
    assert [p.name for p in folder.parent.iterdir()] == ["other"]
    for path, content in tree(folder.parent / "other").items():
        assert str(tmp_path).encode() not in content, path


def test_foreign_folder_is_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("years", encoding="utf-8")
    assert main(["compile", "small.yaml"]) == 1
    assert tree(folder) == {"thesis.txt": b"years"} and "thesis" not in capsys.readouterr().err


def test_foreign_file_in_our_folder_is_kept(tmp_path: Path) -> None:
    home = tmp_path / "p"
    write_package(home, package("old.py"))
    (home / "notes.txt").write_text("mine", encoding="utf-8")
    write_package(home, package())
    assert set(tree(home)) == {"a.py", "manifest.json", "notes.txt"}
    assert differences(home, package()) == []
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("a file", encoding="utf-8")
    with pytest.raises(ArgumentError, match="left as it is"):
        write_package(tmp_path / "p", package())
    assert (tmp_path / "p").read_text(encoding="utf-8") == "a file"


def test_many_writers(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=write_package, args=(tmp_path / "p", package())) for _ in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert differences(tmp_path / "p", package()) == []
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["p"]


USE = """
import sys, torch
if "standalone" in sys.argv:
    sys.modules["fwgen"] = None
from generated.small import small
k, v = torch.ones(1, 3, 1, 2), torch.ones(1, 3, 1, 4)
y, final = small(k, v, output_final_state=True, backend="reference")
assert y[0, :, 0, 0].tolist() == [2, 4, 6] and final["W"].shape == (1, 1, 4, 2)
"""


@pytest.mark.parametrize("mode", ["plain", "standalone"])
def test_package_runs(mode: str, tmp_path: Path) -> None:
    extra = ["--standalone"] if mode == "standalone" else []
    assert main(["compile", "small.yaml", *extra]) == 0
    command = [sys.executable, "-B", "-c", USE, mode]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
