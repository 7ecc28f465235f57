"""Debian packages as a source of public texts: download, unpack without installing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import fwgen


def fetch(package: str, cache: Path) -> Path:
    """The folder into which a package was unpacked; downloads it once.

    Raises UnsupportedError where Debian's tools or the package cannot be had.
    """
    folder = cache / package
    if folder.is_dir():
        return folder
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise fwgen.UnsupportedError(f"{package} comes as a Debian package; no {tool} here")
    cache.mkdir(parents=True, exist_ok=True)
    _run("apt-get", "download", "-q", package, folder=cache)
    (archive,) = sorted(cache.glob(f"{package}_*.deb"))[-1:]
    partial = cache / f"{package}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    _run("dpkg-deb", "-x", archive.name, partial.name, folder=cache)
    partial.rename(folder)
    archive.unlink()
    return folder


def _run(*command: str, folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise fwgen.UnsupportedError(
            f"{' '.join(command)} failed: {last[0]} (`apt-get update` renews the list of packages)"
        )
