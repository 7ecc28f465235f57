"""Entries of the cache that are not what they say: never trusted, always replaced."""

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from hand_delta import delta_signature, draw
from small_library import SOURCE, answer, command, place, script

from fwgen.errors import UnsupportedError
from fwgen.runtime import build
from fwgen.runtime.op import CompiledRule

pytestmark = pytest.mark.usefixtures("cache")


def spoil_bytes(content: bytes, damage: str) -> bytes:
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    return {
        "truncated": content[:1000],
        "without its last byte": content[:-1],
        "one byte longer": content + b"\0",
        "empty": b"",
        "only a seal": build.SEAL + bytes(32),
        "not a library": b"\x7fELF" + b"x" * 5000,
        "text": "wörter\n".encode() * 3000,
        "flipped": bytes(flipped),
        "seal flipped": content[:-1] + bytes([content[-1] ^ 1]),
    }[damage]


DAMAGES = (
    *("truncated", "without its last byte", "one byte longer", "empty", "only a seal"),
    *("not a library", "text", "flipped", "seal flipped"),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> bytes:
    """The bytes of the library for 3, which this process never loads from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FWGEN_CACHE_DIR", str(tmp_path_factory.mktemp("sound")))
        path = place(3)
        build._provide(path, SOURCE, command(3))
        return path.read_bytes()


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_library_is_built_again(cache, sound, damage):
    cache.mkdir()
    place(3).write_bytes(spoil_bytes(sound, damage))
    assert not build._intact(place(3))
    assert answer(3) == 3 and build._intact(place(3))
    assert set(cache.iterdir()) == {place(3)}


def test_intact_library_is_taken_as_it_is(cache, sound):
    """The counterpart of the damages: nothing is built where nothing is wrong."""
    cache.mkdir()
    place(3).write_bytes(sound)
    before = place(3).stat()
    assert answer(3) == 3
    assert os.path.samestat(before, place(3).stat())


def test_library_of_another_key_is_refused(cache):
    """Sound in itself, and not what its name says: another dtype, other sizes, another rule."""
    build._provide(place(5), SOURCE, command(5))
    shutil.copyfile(place(5), place(6))
    assert build._intact(place(5)) and not build._intact(place(6))
    assert answer(6) == 6 and answer(5) == 5


def test_libraries_of_two_dtypes_exchanged(cache, sources):
    """The whole way: kernels for float64 under the name of those for float32."""
    wide, narrow = (draw(9, dtype=dtype) for dtype in (torch.float64, torch.float32))
    expected = CompiledRule(delta_signature(), sources)(*narrow.values(), backend="reference")[0]
    CompiledRule(delta_signature(), sources)(*wide.values(), backend="cpu")
    (double,) = cache.iterdir()
    CompiledRule(delta_signature(), sources)(*narrow.values(), backend="cpu")
    (single,) = set(cache.iterdir()) - {double}
    moved = single.with_suffix(".moved")
    double.rename(moved)
    single.rename(double)
    moved.rename(single)
    found = CompiledRule(delta_signature(), sources)(*narrow.values(), backend="cpu")[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link"])
def test_something_else_under_the_name(cache, kind):
    cache.mkdir()
    path = place(9)
    if kind == "folder":
        path.mkdir()
        with pytest.raises(UnsupportedError, match="FWGEN_CACHE_DIR"):
            answer(9)
        return
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(cache / "nothing")
    assert answer(9) == 9 and build._intact(path)


def test_sealed_library_that_does_not_load_is_not_kept(cache, tmp_path, monkeypatch):
    """A compiler that writes rubbish and says nothing; it must not poison the cache."""
    bad = script(tmp_path / "rubbish", 'while [ "$1" != -o ]; do shift; done; echo rubbish > "$2"')
    monkeypatch.setenv("CXX", str(bad))
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=re.escape(str(bad))) as error:
            answer(10)
        assert "FWGEN_CACHE_DIR" in str(error.value) and not list(cache.iterdir())


def test_other_compiler_other_library(cache, tmp_path, monkeypatch):
    """Another program, the same one after an update, other arguments: each has its own entry."""
    wrapper = tmp_path / "wrapper"
    for text, arguments, expected in (
        ('exec g++ "$@"', "", 11),
        ('exec g++ "$@" -UANSWER -DANSWER=12', "", 12),
        ('exec g++ "$@" -UANSWER -DANSWER=13', "", 13),
        ('exec g++ "$@"', "-O1", 11),
    ):
        script(wrapper, text)
        monkeypatch.setenv("CXX", f"{wrapper} {arguments}")
        assert answer(11) == expected
    assert len(list(cache.iterdir())) == 4


def test_package_with_a_spoilt_manifest(tmp_path, sources):
    """The files beside the library are a user's too."""
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    for text in ("", "{", "[]", '{"signature": {}}', '{"signature": {"name": 3}}', "\0" * 100):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(UnsupportedError, match=r"fwgen compile"):
            CompiledRule.from_folder(Path(tmp_path))
