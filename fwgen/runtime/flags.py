"""Flags of the C++ compiler: one source, the vector instructions of any processor.

`FWGEN_ISA` names them: `native` (the default) is all that this processor has, `avx512` and `avx2`
are these and no wider ones, `plain` is what every processor of the architecture has (SSE2, NEON).
It is read when a library is needed first, and is part of the library's key in the cache.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from ..errors import ArgumentError, UnsupportedError

COMMON = ("-std=c++17", "-fopenmp", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
EXTENSIONS = {
    "avx512": ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
    "avx2": ("avx2", "fma"),
    "plain": (),
}
"""What the named sets add to the x86-64 baseline, as the compiler and the system call it."""
ISAS = ("native", *EXTENSIONS)
X86, ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")
WIDEST = "-mprefer-vector-width=512"


def chosen_isa() -> str:
    """The set that `FWGEN_ISA` names.

    Raises ArgumentError for an unknown name and UnsupportedError for what this processor lacks.
    """
    isa = os.environ.get("FWGEN_ISA", "").strip() or "native"
    if isa not in ISAS:
        raise ArgumentError(f"FWGEN_ISA: expected one of {', '.join(ISAS)}, found {isa!r}")
    lacking = missing(isa)
    if lacking:
        others = [name for name in ISAS if not missing(name)]
        raise UnsupportedError(
            f"FWGEN_ISA={isa}: this processor ({platform.machine()}) lacks {', '.join(lacking)}; "
            f"{', '.join(others)} can be served"
        )
    return isa


def missing(isa: str) -> tuple[str, ...]:
    """The extensions of a set that this processor does not have."""
    return tuple(name for name in EXTENSIONS.get(isa, ()) if name not in _extensions())


def widest() -> str:
    """The widest of the named sets that this processor has."""
    return next(isa for isa in EXTENSIONS if not missing(isa))


@functools.cache
def _extensions() -> frozenset[str]:
    """The extensions of this processor among those that sets are made of."""
    known = frozenset(name for names in EXTENSIONS.values() for name in names)
    with contextlib.suppress(OSError):
        return known & set(_description().split())
    import torch  # on a system without /proc

    capability = torch.backends.cpu.get_cpu_capability().lower()
    return frozenset(EXTENSIONS.get(capability, ()))


def _description() -> str:
    """What Linux says of the first processor; OSError elsewhere."""
    found = ""
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        for line in lines:
            if not line.strip():
                break
            if line.startswith(wanted):
                found += "\n" + line.strip()
    return found


@functools.cache
def processor() -> str:
    """What `native` depends on: the architecture and the first processor's description."""
    with contextlib.suppress(OSError):
        return platform.machine() + _description()
    return platform.machine()


def vector_flags(isa: str, machine: str) -> list[str]:
    """The flags that choose instructions; none for an architecture of which nothing is known."""
    if machine in ARM:
        return ["-mcpu=native" if isa == "native" else "-march=armv8-a"]
    if machine not in X86:
        return []
    if isa == "native":
        return ["-march=native", WIDEST]
    extensions = [f"-m{name}" for name in EXTENSIONS[isa]]
    return ["-march=x86-64", *extensions, *([WIDEST] if isa == "avx512" else [])]


def compile_flags(
    program: str, defines: Sequence[str], isa: str, machine: str | None = None
) -> list[str]:
    """All flags for one library; `machine` is the architecture it runs on, by default this one."""
    # With sizes left open, -O3 only multiplies the code: twice the time to build for no speed.
    fixed = any(define.startswith("FWGEN_SIZE") for define in defines)
    flags = [*COMMON, "-O3" if fixed else "-O2", *(f"-D{define}" for define in defines)]
    flags += vector_flags(isa, machine or platform.machine())
    if "clang" not in Path(program).name:
        # With GNU's unique symbols, static variables of inline functions would be shared by all
        # libraries of the process: other rules, other dtypes.
        flags.append("-fno-gnu-unique")
        # Values that these two carry across the loops over tokens take the registers of the loops
        # over the state, which then load and store: up to a third of a backward's time.
        flags += ["-fno-gcse", "-fno-tree-pre"]
        if fixed:
            # A scan over blocks is a function to the compiler, and slower by a sixth where it is
            # left one because what calls it is large already.
            flags += ["--param", "large-function-insns=8000"]
    return flags
