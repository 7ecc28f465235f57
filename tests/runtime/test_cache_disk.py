"""Folders that cannot be written, and disks that are full."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_library import answer, place

from fwgen.errors import UnsupportedError
from fwgen.runtime import build

pytestmark = pytest.mark.usefixtures("cache")

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("kind", ["below a file", "a file", "no such system", "too long", "link"])
def test_folder_that_cannot_be(cache, tmp_path, kind, monkeypatch):
    folder = {
        "below a file": cache / "deeper",
        "a file": cache,
        "no such system": "/proc/fwgen",
        "too long": tmp_path / ("long" * 100),
        "link": tmp_path / "link",
    }[kind]
    cache.write_text("a file")
    (tmp_path / "link").symlink_to(tmp_path / "nothing" / "there")
    monkeypatch.setenv("FWGEN_CACHE_DIR", str(folder))
    with pytest.raises(UnsupportedError, match="FWGEN_CACHE_DIR"):
        answer(1)
    assert cache.read_text() == "a file"


# Runs in a mount namespace of its own, where root can make a file system read-only or tiny.
READ_ONLY = """
mount -t tmpfs -o size=1m none "$FWGEN_CACHE_DIR"
{python} -c 'from small_library import answer; print(answer(1))'
mount -o remount,ro "$FWGEN_CACHE_DIR"
{python} -c 'from small_library import answer; print(answer(1)); answer(2)'
"""
FULL = """
mount -t tmpfs -o size={size}k none "$FWGEN_CACHE_DIR"
{python} -c 'from small_library import answer; print(answer(1))'
echo "code $?"
ls -A "$FWGEN_CACHE_DIR"
"""
NO_EXECUTION = """
mount -t tmpfs -o noexec none "$FWGEN_CACHE_DIR"
{python} -c 'from small_library import answer; print(answer(1))'
"""


def mounted(lines: str, cache: Path, **words: object) -> subprocess.CompletedProcess[str]:
    """Run shell lines in a mount namespace; skips where the system allows none."""
    unshare = shutil.which("unshare")
    probe = [unshare or "false", "-rm", "mount", "-t", "tmpfs", "none", str(cache)]
    cache.mkdir()
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here; the limit of file sizes stands in for a full disk")
    return subprocess.run(
        [str(unshare), "-rm", "sh", "-c", lines.format(python=sys.executable, **words)],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def last_line(run: subprocess.CompletedProcess[str]) -> str:
    return run.stderr.strip().splitlines()[-1]


def test_read_only_disk_serves_what_it_holds(cache):
    run = mounted(READ_ONLY, cache)
    assert run.stdout.split() == ["1", "1"], run.stderr
    assert last_line(run).startswith("fwgen.errors.UnsupportedError: built kernels cannot be")
    assert "Read-only" in last_line(run) and "FWGEN_CACHE_DIR" in last_line(run)


@pytest.mark.parametrize("size", [4, 12, 16, 24, 28, 32, 200])
def test_full_disk(cache, size):
    """Whoever meets its end, our own writing, the compiler, the assembler or the linker."""
    run = mounted(FULL, cache, size=size)
    if "code 0" in run.stdout:
        assert run.stdout.split()[0] == "1" and size > 16
    else:
        assert size < 200
        assert run.stdout.split() == ["code", "1"], "nothing is left behind"
        assert "UnsupportedError: built kernels cannot be written" in run.stderr, run.stderr
        assert "FWGEN_CACHE_DIR" in last_line(run)


def test_disk_without_execution(cache):
    run = mounted(NO_EXECUTION, cache)
    assert "UnsupportedError: a built kernel cannot be loaded" in last_line(run)
    assert "FWGEN_CACHE_DIR" in last_line(run)


@pytest.mark.parametrize("size", [0, 100, 1000, 3000, 8000, 15000])
def test_limited_file_size(cache, size):
    """A limit of the system on files, at every stage of a build; lifted, the same call works."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(UnsupportedError, match="FWGEN_CACHE_DIR"):
            answer(3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(cache.iterdir())
    assert answer(3) == 3 and list(cache.iterdir()) == [place(3)]


def test_disk_that_fills_while_the_seal_is_written(cache, monkeypatch):
    real = build._seal

    def full(path: Path, content: bytes) -> bytes:
        if build.SEAL not in content:
            raise OSError(28, os.strerror(28))
        return real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(build, "_seal", full)
        with pytest.raises(UnsupportedError, match=r"No space left.*FWGEN_CACHE_DIR"):
            answer(4)
    assert not list(cache.iterdir()) and answer(4) == 4
