"""`fwgen doctor`: what this machine has for each backend, what it lacks, and how to get it."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fwgen
from fwgen.commands.common import command, print_table
from fwgen.errors import ArgumentError, UnsupportedError
from fwgen.runtime.build import cache_folder
from fwgen.runtime.compiler import find_compiler
from fwgen.runtime.flags import ISAS, chosen_isa, missing, widest

PACKAGES = {
    "torch": "needed to run anything: pip install torch",
    "triton": "kernels on GPUs: pip install triton (Linux only)",
    "sympy": "needed to compile rules: pip install sympy",
    "hypothesis": "needed by `fwgen check`: pip install hypothesis",
    "matplotlib": "needed by `fwgen plot`: pip install matplotlib",
}
Row = tuple[str, str, str]


def add(subparsers: Any) -> None:
    """Add the command."""
    command(
        subparsers,
        "doctor",
        run,
        "show what this machine has and lacks",
        "Lists Python packages, the C++ compiler, processors, GPUs and the folder of built\n"
        "libraries, with a remedy beside everything that is missing. Always exits 0.\n\n"
        "The CPU kernels are built with CXX, or else g++ or c++, and kept in FWGEN_CACHE_DIR, or\n"
        "else ~/.cache/fwgen.\n\n"
        "example:\n  fwgen doctor\n  CXX=clang++ fwgen doctor",
    )


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    rows: list[Row] = [("what", "found", "remedy")]
    rows.append(("fwgen", fwgen.__version__, ""))
    rows.append(("python", platform.python_version(), ""))
    rows += [_package(name, remedy) for name, remedy in PACKAGES.items()]
    rows += [_compiler(), _processors(), _vectors(), _gpu(), _cache()]
    print_table(rows)
    return 0


def _package(name: str, remedy: str) -> Row:
    if find_spec(name) is None:
        return name, "missing", remedy
    try:
        return name, metadata.version(name), ""
    except metadata.PackageNotFoundError:
        return name, "found, version unknown", ""


def _compiler() -> Row:
    """The C++ compiler that the CPU backend would use."""
    name = f"{os.environ.get('CXX', '').strip() or 'g++'} (C++ compiler)"
    try:
        words = find_compiler()
    except UnsupportedError:
        return name, "missing", "kernels on CPUs: apt install g++, or set CXX"
    try:
        text = subprocess.run(
            [*words, "--version"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return name, f"does not run: {error}", "reinstall it, or set CXX"
    return name, (text.splitlines() or ["no version"])[0], ""


def _processors() -> Row:
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    flags = ""
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
        wide = [name for name in ("avx512f", "avx2", "neon", "asimd") if name in words]
        flags = f", {wide[0]}" if wide else ""
    except OSError:
        pass
    return "processors", f"{count} x {platform.machine()}{flags}", ""


def _vectors() -> Row:
    """The vector instructions that kernels are compiled for."""
    others = [isa for isa in ISAS if not missing(isa)]
    remedy = f"FWGEN_ISA chooses among {', '.join(others)}"
    try:
        isa = chosen_isa()
    except (ArgumentError, UnsupportedError) as error:
        return "vector code", str(error), remedy
    return "vector code", f"{isa} ({widest()})" if isa == "native" else isa, remedy


def _gpu() -> Row:
    if find_spec("torch") is None:
        return "gpu", "unknown without torch", ""
    try:
        import torch
    except (ImportError, OSError) as error:
        return "gpu", f"unknown: torch does not load ({error})", "install torch again"
    if torch.cuda.is_available():
        return "gpu", torch.cuda.get_device_name(0), ""
    remedy = "none needed for CPU tensors; TRITON_INTERPRET=1 runs the Triton kernels slowly"
    return "gpu", "none that torch can use", remedy


def _cache() -> Row:
    try:
        folder = cache_folder()
    except UnsupportedError:
        return "library cache", "no home folder", "set FWGEN_CACHE_DIR to a folder"
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    good = _takes_files(nearest)
    remedy = "" if good else "set FWGEN_CACHE_DIR to a folder that can be written"
    return "library cache", f"{folder} ({'writable' if good else 'not writable'})", remedy


def _takes_files(folder: Path) -> bool:
    """Whether a folder can be made inside: what is allowed may still be impossible, as in /proc."""
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            return True
    except OSError:
        return False
