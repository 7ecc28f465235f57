"""The generated package `generated/<name>/`: its files, and writing them without harm."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import fwgen
from fwgen.commands.aot import AOT_TARGETS, resource_section
from fwgen.commands.report import report_markdown
from fwgen.driver import TARGETS, Compilation
from fwgen.emit.heading import compile_command, headed
from fwgen.emit.render import render
from fwgen.errors import ArgumentError
from fwgen.language import Rule

MANIFEST = "manifest.json"
PRIVATE = "_fwgen"
"""Where a stand-alone package keeps its copy of the runtime."""


def package_files(
    compilation: Compilation,
    name: str,
    *,
    targets: Sequence[str],
    constants: Mapping[str, float],
    maps: Mapping[str, str],
    standalone: bool = False,
    resources: Sequence[Mapping[str, Any]] = (),
) -> dict[str, str]:
    """The package's files by relative path; the same rule gives the same bytes.

    `resources` of kernels that were compiled ahead of time go into the report. The manifest records
    what `fwgen compile --check` needs to compile the rule once more.
    """
    rule = compilation.rule
    options = _options(name, rule.name, targets, standalone)
    command = compile_command(rule.name, constants, maps, options)
    files = {"rule.yaml": rule.to_yaml(), **compilation.sources}
    files["REPORT.md"] = report_markdown(compilation, command) + resource_section(resources)
    module = _module(rule, name, standalone)
    files |= headed({"__init__.py": module}, rule.name, rule.hash, command)
    if standalone:
        files |= _runtime_files()
    asked = {
        "targets": list(targets),
        "set": dict(sorted(constants.items())),
        "maps": dict(sorted(maps.items())),
        "standalone": standalone,
    }
    manifest = _manifest(compilation, name, asked, [*files, MANIFEST])
    if resources:
        manifest["aot"] = list(dict.fromkeys(row["target"] for row in resources))
    files[MANIFEST] = json.dumps(manifest, indent=1) + "\n"
    return dict(sorted(files.items()))


def _module(rule: Rule, name: str, standalone: bool) -> str:
    """The package's `__init__.py`, which makes the operator."""
    return render(
        "package/init.py.jinja",
        summary=_docstring(rule),
        name=name,
        folder=f"generated.{name}",
        inputs=", ".join(rule.inputs),
        runtime=f".{PRIVATE}" if standalone else "fwgen",
    )


def _manifest(
    compilation: Compilation, name: str, asked: Mapping[str, Any], files: Sequence[str]
) -> dict[str, Any]:
    """What the package is, and how it was `asked` for."""
    return {
        "generator": "fwgen",
        "version": fwgen.__version__,
        "name": name,
        "rule": compilation.rule.name,
        "hash": compilation.rule.hash,
        "forms": list(compilation.signature.forms),
        **asked,
        "files": sorted(files),
        "signature": json.loads(compilation.signature.to_json()),
    }


def _docstring(rule: Rule) -> str:
    text = rule.summary.replace("\\", "\\\\").replace('"""', "'''")
    return text if text else f"The rule {rule.name}."


def _options(name: str, rule: str, targets: Sequence[str], standalone: bool) -> list[str]:
    """What the command that makes a package has beside the rule, its constants and its maps."""
    options = ["--name", name] if name != rule else []
    options += ["--target", ",".join(targets)] if tuple(targets) != TARGETS else []
    return options + ["--standalone"] * standalone


def _runtime_files() -> dict[str, str]:
    """The runtime and the errors, which import each other relatively and otherwise only torch."""
    home = Path(fwgen.__file__).parent
    paths = [home / "errors.py", *sorted((home / "runtime").glob("*.py"))]
    files = {
        f"{PRIVATE}/{path.relative_to(home).as_posix()}": path.read_text(encoding="utf-8")
        for path in paths
    }
    version = f'__version__ = "{fwgen.__version__}"\n'
    return {f"{PRIVATE}/__init__.py": f'"""The runtime of fwgen."""\n\n{version}', **files}


@dataclass(frozen=True)
class Settings:
    """What a package was made with."""

    constants: dict[str, float] = field(default_factory=dict)
    maps: dict[str, str] = field(default_factory=dict)
    targets: tuple[str, ...] = TARGETS
    standalone: bool = False
    aot: tuple[str, ...] = ()


def recorded(folder: Path) -> Settings:
    """The settings in the manifest of a package; the usual ones where it has none that fit."""
    manifest = read_manifest(folder) or {}
    constants, maps, targets = (manifest.get(key) for key in ("set", "maps", "targets"))
    known = targets if isinstance(targets, list) and set(targets) <= set(TARGETS) else []
    gpus = manifest.get("aot")
    return Settings(
        constants if _holds(constants, int | float) else {},
        maps if _holds(maps, str) else {},
        tuple(known) or TARGETS,
        manifest.get("standalone") is True,
        tuple(gpus) if isinstance(gpus, list) and set(gpus) <= set(AOT_TARGETS) else (),
    )


def _holds(value: object, kind: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and all(isinstance(item, kind) for item in value.values())


def packages_of(rule: str, folder: Path) -> list[str]:
    """The packages in a folder that were made from a rule of that name."""
    if not folder.is_dir():
        return []
    manifests = {path.name: read_manifest(path) for path in sorted(folder.iterdir())}
    return [name for name, found in manifests.items() if found and found.get("rule") == rule]


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a package that fwgen wrote; None for any other folder or nothing."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    ours = isinstance(manifest, dict) and manifest.get("generator") == "fwgen"
    files = manifest.get("files") if ours else None
    return manifest if _all_texts(files) else None


def _all_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def differences(folder: Path, files: Mapping[str, str]) -> list[str]:
    """What `fwgen compile` would change, one sentence per file; empty when the package is fresh."""
    manifest = read_manifest(folder)
    if manifest is None:
        return [
            f"{folder} is not a package of fwgen" if folder.exists() else f"{folder} is missing"
        ]
    found = []
    for path, text in files.items():
        try:
            content = (folder / path).read_bytes()
        except OSError:
            found.append(f"{folder / path} is missing")
            continue
        if content != text.encode():
            found.append(f"{folder / path} differs")
    stale = sorted(set(manifest["files"]) - set(files))
    return found + [f"{folder / path} is no longer made" for path in stale]


def write_package(folder: Path, files: Mapping[str, str]) -> None:
    """Put the package in place in one step; files in the folder that are not ours are kept.

    Raises ArgumentError when the folder exists and is not a package of fwgen, OSError when it
    cannot be written; then nothing has changed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent):
        old = read_manifest(folder)
        if old is None and (folder.is_symlink() or folder.exists()) and not _is_empty(folder):
            raise ArgumentError(
                f"{folder} exists and was not written by fwgen; it is left as it is: move it, or "
                "choose another name (--name) or folder (-o)"
            )
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _fill(fresh, files)
            if old is not None:
                _keep_foreign(folder, fresh, old)
            _exchange(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time per folder, across processes; leaves no file behind."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    folder.chmod(0o777 & ~_umask())
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _keep_foreign(old: Path, fresh: Path, manifest: Mapping[str, Any]) -> None:
    """Copy what somebody else put into the old package."""
    ours = set(manifest["files"])
    for path in sorted(old.rglob("*")):
        relative = path.relative_to(old)
        if "__pycache__" in relative.parts or relative.as_posix() in ours or path.is_dir():
            continue
        target = fresh / relative
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)


def _exchange(fresh: Path, folder: Path) -> None:
    """Move `fresh` to `folder`; what was there ends up at `fresh`, or is gone if it was empty."""
    try:
        fresh.rename(folder)  # replaces nothing or an empty folder
        return
    except OSError:
        if not folder.is_dir():
            raise
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    folder.rename(aside)
    try:
        fresh.rename(folder)
    except OSError:
        aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)
