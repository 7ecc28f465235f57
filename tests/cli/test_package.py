"""The generated package: deterministic, checked, atomic, and never at the cost of other files."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import sysconfig
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


def test_check_finds_the_package_under_another_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--set", "nu=2", "--target", "cpu", "--standalone"]
    assert main(["compile", "small.yaml", "--name", "other", *options]) == 0
    assert main(["compile", "small.yaml", "--check"]) == 0
    (folder.parent / "other" / "cpu.cpp").unlink()
    assert main(["compile", "small.yaml", "--check"]) == 1
    capsys.readouterr()
    assert main(["compile", "small.yaml", "--name", "third"]) == 0
    assert main(["compile", "small.yaml", "--check"]) == 2
    assert "other, third; add --name" in capsys.readouterr().err
    assert main(["compile", "small.yaml", "--check", "--name", "third"]) == 0
    assert main(["compile", "small.yaml"]) == 0
    assert main(["compile", "small.yaml", "--check"]) == 0


def test_check_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "small.yaml", "--check", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fresh"] is False and found["stale"] == [f"{Path('generated/small')} is missing"]
    assert main(["compile", "small.yaml"]) == 0
    capsys.readouterr()
    assert main(["compile", "small.yaml", "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fresh"] is True and found["stale"] == []


DAMAGES: list[object] = [
    {"set": None},
    {"set": [1], "maps": 3, "targets": "x", "standalone": 1},
    {"set": {"nu": "two"}, "targets": []},
    {"targets": ["fortran"]},
    {"files": ["../../small.yaml", 3]},
    {"generator": "somebody"},
    [],
]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_a_damaged_manifest_is_stale(
    damage: object, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "small.yaml"]) == 0
    manifest = folder / "manifest.json"
    known = json.loads(manifest.read_text(encoding="utf-8"))
    found = known | damage if isinstance(damage, dict) else damage
    manifest.write_text(json.dumps(found), encoding="utf-8")
    capsys.readouterr()
    assert main(["compile", "small.yaml", "--check"]) == 1
    assert "small" in capsys.readouterr().err
    assert Path("small.yaml").exists()


def test_a_keyword_is_no_package(capsys: pytest.CaptureFixture[str]) -> None:
    Path("class.yaml").write_text(RULE.replace("name: small", "name: class"), encoding="utf-8")
    assert main(["compile", "class.yaml"]) == 2
    assert "--name" in capsys.readouterr().err and not Path("generated").exists()
    assert main(["compile", "class.yaml", "--name", "klass"]) == 0


def test_a_failed_write_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["compile", "small.yaml"]) == 0
    before = tree(folder)
    real, written = Path.write_bytes, []

    def full(path: Path, content: bytes) -> int:
        written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["compile", "small.yaml", "--set", "nu=5"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert tree(folder) == before and [p.name for p in folder.parent.iterdir()] == ["small"]


@pytest.mark.parametrize("out", ["small.yaml", "small.yaml/deeper"])
def test_a_file_where_the_folder_should_be(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "small.yaml", "-o", out]) == 2
    captured = capsys.readouterr()
    assert not captured.out and f"cannot write {out}" in captured.err


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    folder.parent.mkdir()
    folder.symlink_to(mine)
    assert main(["compile", "small.yaml"]) == 1
    assert folder.is_symlink() and list(mine.iterdir()) == []


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


ALONE = """
import importlib.util, sys
sys.path[:0] = sys.argv[2:]
assert importlib.util.find_spec("fwgen") is None, "fwgen can be imported"
import torch
from vendored.kernels import small
k, v = torch.ones(1, 3, 1, 2, requires_grad=True), torch.ones(1, 3, 1, 4)
y, final = small(k, v, output_final_state=True, backend=sys.argv[1])
y.sum().backward()
assert y[0, :, 0, 0].tolist() == [2, 4, 6] and final["W"].shape == (1, 1, 4, 2)
assert k.grad[0, :, 0, 0].tolist() == [16, 16, 16], k.grad
assert not any(name == "fwgen" or name.startswith("fwgen.") for name in sys.modules)
"""


@pytest.mark.parametrize("backend", ["reference", pytest.param("cpu", marks=pytest.mark.slow)])
def test_standalone_copy_in_a_project_without_fwgen(backend: str, tmp_path: Path) -> None:
    """An empty project, and a Python that has torch and does not know of fwgen."""
    assert main(["compile", "small.yaml", "--standalone"]) == 0
    project = tmp_path / "project"
    shutil.copytree(tmp_path / "generated" / "small", project / "vendored" / "kernels")
    shutil.rmtree(tmp_path / "generated")
    packages = [str(project), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    command = [sys.executable, "-I", "-S", "-B", "-c", ALONE, backend, *packages]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", ["plain", "standalone"])
def test_package_runs(mode: str, tmp_path: Path) -> None:
    extra = ["--standalone"] if mode == "standalone" else []
    assert main(["compile", "small.yaml", *extra]) == 0
    command = [sys.executable, "-B", "-c", USE, mode]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
