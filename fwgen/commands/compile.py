"""`fwgen compile`: write the package of a rule, or say whether it is fresh."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
import time
from pathlib import Path
from typing import Any

from fwgen.commands.common import (
    UsageError,
    add_rule_arguments,
    choices,
    command,
    open_rule,
    print_json,
)

ALL_TARGETS = ("cpu", "triton")
MANUAL = """\
The package holds the rule, a readable PyTorch loop (reference.py), the kernels (triton_*.py and
cpu.cpp), a report and a manifest, and is importable from the folder above:

    from generated.delta import delta
    y, final = delta(q, k, v, beta, output_final_state=True)

It is written in one step; a folder that fwgen did not write is never touched. The manifest records
--set, --map, --target and --standalone, and --check compiles with the recorded ones unless others
are given: it writes nothing and exits 1 when what lies there is missing or differs.

example:
  fwgen compile deltanet
  fwgen compile my_rule.yaml --set nu=2 --map phi='elu(x) + 1' -o kernels
  fwgen compile deltanet --check
  fwgen compile deltanet --aot sm_90 --json
"""


def add(subparsers: Any) -> None:
    """Add the command."""
    parser = command(subparsers, "compile", run, "write the kernels of a rule as a package", MANUAL)
    add_rule_arguments(parser)
    parser.add_argument(
        "-o",
        dest="out",
        metavar="FOLDER",
        type=Path,
        default=Path("generated"),
        help="where the package's folder goes (default: generated)",
    )
    parser.add_argument(
        "--name", metavar="N", type=_package_name, help="the package's name (default: the rule's)"
    )
    parser.add_argument(
        "--target",
        metavar="cpu,triton",
        type=choices(*ALL_TARGETS),
        help="the kernels to write (default: both)",
    )
    parser.add_argument(
        "--aot",
        metavar="TARGETS",
        type=choices("sm_90", "sm_80", "gfx942"),
        help="also compile the Triton kernels for these GPUs, none needed, and report registers, "
        "spills and shared memory: sm_90, sm_80, gfx942, separated by commas",
    )
    parser.add_argument(
        "--standalone",
        action="store_true",
        help="put a copy of the runtime into the package, which then needs torch but not fwgen",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if not fresh")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _package_name(text: str) -> str:
    """A name that can be imported; argparse reports the ValueError's text otherwise."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", text) or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no package name: lower-case letters, digits and underscores, at most 64"
        )
    return text


def run(options: argparse.Namespace) -> int:
    """Compile, then write or compare."""
    from fwgen.commands.package import differences, package_files, write_package
    from fwgen.driver import compile_rule

    start = time.perf_counter()
    _recall(options)
    constants, maps = dict(options.set), dict(options.map)
    targets = tuple(t for t in ALL_TARGETS if t in (options.target or ALL_TARGETS))
    rule = open_rule(options.rule, constants, maps)
    name = options.name or rule.name
    compilation = compile_rule(rule, targets)
    files = package_files(
        compilation,
        name,
        targets=targets,
        constants=constants,
        maps=maps,
        standalone=options.standalone,
    )
    folder = options.out / name
    if options.check:
        faults = differences(folder, files)
        for fault in faults:
            print(f"fwgen: {fault}", file=sys.stderr)
    else:
        faults = []
        try:
            write_package(folder, files)
        except OSError as error:
            raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
    document: dict[str, Any] = {
        "name": name,
        "hash": rule.hash,
        "forms": list(compilation.signature.forms),
        "targets": list(targets),
        "files": list(files),
        "lines": sum(text.count("\n") for text in files.values()),
    }
    if options.aot:
        document["aot"] = _ahead_of_time(compilation, options.aot)
    document["seconds"] = round(time.perf_counter() - start, 3)
    print_json(document) if options.json else _print(document, folder, options.check, not faults)
    return 1 if faults else 0


def _recall(options: argparse.Namespace) -> None:
    """`--check` uses the settings that the manifest records where none are given."""
    from fwgen.commands.package import read_manifest
    from fwgen.language import load_rule

    if not options.check:
        return
    name = options.name or load_rule(options.rule).name
    manifest = read_manifest(options.out / name)
    if manifest is None:
        return
    options.set = options.set or list(manifest["set"].items())
    options.map = options.map or list(manifest["maps"].items())
    options.target = options.target or tuple(manifest["targets"])
    options.standalone = options.standalone or manifest["standalone"]


def _ahead_of_time(compilation: Any, targets: tuple[str, ...]) -> list[dict[str, Any]]:
    """Registers, spills and shared memory of every Triton kernel for every target."""
    from fwgen.commands.aot import compile_ahead

    return [dict(row) for target in targets for row in compile_ahead(compilation, target)]


def _print(document: dict[str, Any], folder: Path, check: bool, fresh: bool) -> None:
    if check:
        print(f"{folder}: {'fresh' if fresh else 'not fresh'}")
        return
    print(f"{document['name']}: forms {', '.join(document['forms'])}")
    for path in document["files"]:
        print(f"  {folder / path}")
    print(f"{document['lines']} lines in {document['seconds']:.1f} s")
    for row in document.get("aot", ()):
        print("  " + "  ".join(f"{key} {value}" for key, value in row.items()))
