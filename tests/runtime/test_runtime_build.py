"""The build cache: shared by processes, never trusted blindly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fwgen.errors import InternalError, UnsupportedError
from fwgen.runtime import build

SOURCE = 'extern "C" int answer(void) { return ANSWER; }'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("FWGEN_CACHE_DIR", str(folder))
    return folder


def answer(value: int) -> int:
    return build.load("answer", SOURCE, [f"ANSWER={value}"]).answer()


def test_builds_once_per_content(cache):
    assert answer(1) == 1 and answer(2) == 2
    files = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(files) == 2 and answer(1) == 1
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == files


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign", "flipped"])
def test_damaged_library_is_built_again(cache, damage):
    path = build.library_path("answer", SOURCE, ["ANSWER=3"])
    cache.mkdir()
    build._build(path, SOURCE, ["ANSWER=3"])
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    bad = {
        "truncated": content[:1000],
        "empty": b"",
        "foreign": b"\x7fELF" + b"x" * 5000,
        "flipped": bytes(flipped),
    }
    path.write_bytes(bad[damage])
    assert not build._intact(path)
    assert answer(3) == 3 and build._intact(path)


@pytest.mark.parametrize("kind", ["below a file", "read-only"])
def test_cache_that_cannot_be_written(cache, kind, monkeypatch):
    if kind == "below a file":
        cache.write_text("a file")
        monkeypatch.setenv("FWGEN_CACHE_DIR", str(cache / "deeper"))
    else:
        monkeypatch.setenv("FWGEN_CACHE_DIR", "/proc/fwgen")
    with pytest.raises(UnsupportedError, match="FWGEN_CACHE_DIR"):
        answer(4)


def test_full_disk(cache, monkeypatch):
    """Stands in for a full disk: the compiler can say so, and so can our own writing."""

    def full(*args, **options):
        return subprocess.CompletedProcess(
            args, 1, "", "ld: final link failed: No space left on it"
        )

    with monkeypatch.context() as patch:
        patch.setattr(build.subprocess, "run", full)
        with pytest.raises(UnsupportedError, match=r"No space left.*\n?.*FWGEN_CACHE_DIR"):
            answer(5)
    assert not list(cache.iterdir()) and answer(5) == 5


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "")
    with pytest.raises(UnsupportedError, match=r"compiler.*reference"):
        answer(6)
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(UnsupportedError, match=r"compiler.*no-such-compiler"):
        answer(6)


def test_refused_source_is_our_fault():
    with pytest.raises(InternalError, match="expected"):
        build.load("broken", "int answer(void) { return 1 }")


def test_no_home(monkeypatch):
    monkeypatch.delenv("FWGEN_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build.Path, "home", staticmethod(no_home))
    with pytest.raises(UnsupportedError, match="FWGEN_CACHE_DIR"):
        build.cache_folder()


def test_what_killed_builds_left_is_removed(cache):
    cache.mkdir()
    old, new = cache / ".building-old.so", cache / ".building-new.so"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (0, 0))
    assert answer(7) == 7
    assert not old.exists() and new.exists()


def test_many_processes_at_once(cache):
    code = (
        "import sys; from fwgen.runtime import build;"
        "print(build.load('answer', sys.argv[1], ['ANSWER=8']).answer())"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", code, SOURCE], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [run.communicate(timeout=120)[0].strip() for run in runs] == ["8"] * 4
    assert len(list(cache.iterdir())) == 1


def test_libraries_share_no_variables():
    """Two dtypes of one rule: the same names, other types."""
    source = """
        struct Space { int *counter() { static thread_local int kept = 0; return &kept; } };
        extern "C" int count(void) { return (*Space().counter() += STEP); }
    """
    one, two = (build.load("count", source, [f"STEP={step}"]) for step in (1, 10))
    assert [one.count(), two.count(), one.count()] == [1, 10, 2]
