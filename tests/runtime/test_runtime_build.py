"""From source to library: once per content, and no two libraries meet."""

import os
from pathlib import Path

import pytest
from small_library import SOURCE, answer, place

from fwgen.errors import InternalError, UnsupportedError
from fwgen.runtime import build

pytestmark = pytest.mark.usefixtures("cache")


def test_builds_once_per_content(cache):
    assert answer(1) == 1 and answer(2) == 2
    files = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert set(files) == {place(1), place(2)} and answer(1) == 1
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == files


def test_refused_source_is_our_fault(cache):
    with pytest.raises(InternalError, match="expected"):
        build.load("broken", "int answer(void) { return 1 }")
    assert not list(cache.iterdir())


def test_no_home(monkeypatch):
    monkeypatch.delenv("FWGEN_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build.Path, "home", staticmethod(no_home))
    with pytest.raises(UnsupportedError, match="FWGEN_CACHE_DIR"):
        build.cache_folder()


@pytest.mark.parametrize("name", [".", "sub/folder", "with space", "ünï \n%s"])
def test_names_of_the_folder(tmp_path, monkeypatch, name):
    """Relative to where the process is; whatever a folder may be called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FWGEN_CACHE_DIR", name)
    assert answer(3) == 3
    assert [path.name for path in (tmp_path / name).iterdir()] == [place(3).name]


def test_folder_of_an_unknown_user(monkeypatch):
    monkeypatch.setenv("FWGEN_CACHE_DIR", "~no-such-user-here/cache")
    with pytest.raises(UnsupportedError, match="FWGEN_CACHE_DIR"):
        answer(4)


def test_what_killed_builds_left_is_removed(cache):
    old, new = cache / ".building-old", cache / ".building-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "half.so").write_text("half")
    lock = cache / ".lock-old"
    lock.touch()
    for path in (old, lock):
        os.utime(path, (0, 0))
    assert answer(7) == 7
    assert set(cache.iterdir()) == {new, place(7)}


def test_libraries_share_no_variables():
    """Two dtypes of one rule: the same names, other types."""
    source = """
        struct Space { int *counter() { static thread_local int kept = 0; return &kept; } };
        extern "C" int count(void) { return (*Space().counter() += STEP); }
    """
    one, two = (build.load("count", source, [f"STEP={step}"]) for step in (1, 10))
    assert [one.count(), two.count(), one.count()] == [1, 10, 2]


def test_source_of_any_text(cache):
    """What a rule's text can bring into a comment."""
    text = f"// \udc80 ünï \\\n\n{SOURCE}".encode(errors="replace").decode()
    assert build.load("text", text, ["ANSWER=8"]).answer() == 8
    assert isinstance(next(cache.iterdir()), Path)
