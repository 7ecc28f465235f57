"""`fwgen compile`: write the package of a rule, or say whether it is fresh."""

from __future__ import annotations

import argparse
import keyword
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fwgen.commands.aot import AOT_TARGETS
from fwgen.commands.common import (
    UsageError,
    add_rule_arguments,
    choices,
    command,
    complain,
    open_rule,
    print_json,
    print_table,
)
from fwgen.language import load_rule
from fwgen.language.names import RULE_NAME

if TYPE_CHECKING:
    from fwgen.driver import Compilation

ALL_TARGETS = ("cpu", "triton")
MANUAL = """\
Writes the folder NAME below FOLDER: the rule, a readable PyTorch loop (reference.py), the kernels
(triton_*.py and cpu.cpp), a report with the mathematics (REPORT.md) and a manifest. It is imported
from the folder above:

    from generated.delta import delta
    y, final = delta(q, k, v, beta, output_final_state=True)

A package is written in one step, or not at all. A folder that fwgen did not write is never touched,
and files that others put into a package are kept.

The manifest records the rule, --set, --map, --target and --standalone. --check compiles with what
is recorded, unless options say otherwise, and writes nothing: it exits 1 when what lies there is
missing or differs. Without --name it finds the package of the rule under another name, too.

--standalone adds the runtime, so that the folder can be copied into any project that has torch (and
triton for GPUs), under any name.

example:
  fwgen compile deltanet
  fwgen compile my_rule.yaml --set nu=2 --map phi='elu(x) + 1' -o kernels
  fwgen compile deltanet --check || fwgen compile deltanet
  fwgen compile deltanet --aot sm_90,gfx942 --json
"""


def add(subparsers: Any) -> None:
    """Add the command."""
    parser = command(subparsers, "compile", run, "write the kernels of a rule as a package", MANUAL)
    add_rule_arguments(parser)
    parser.add_argument(
        "-o",
        "--out",
        metavar="FOLDER",
        type=_folder,
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
        type=choices(*AOT_TARGETS),
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


def _folder(text: str) -> Path:
    """The path of a folder; argparse reports the error's text."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"expected the path of a folder, found {text!r}")
    return Path(text)


def _package_name(text: str) -> str:
    """A name that can be imported; argparse reports the error's text."""
    if not RULE_NAME.fullmatch(text) or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no package name: lower-case letters, digits and underscores, at most 64, "
            "and no word of Python"
        )
    return text


def run(options: argparse.Namespace) -> int:
    """Compile, then write or compare."""
    from fwgen.commands.package import differences, write_package

    start = time.perf_counter()
    if options.aot and options.target and "triton" not in options.target:
        raise UsageError("--aot compiles Triton kernels: --target must have triton in it")
    rule_name = load_rule(options.rule).name
    name = _recall(options, rule_name) if options.check else options.name or rule_name
    compilation, files, resources = _compiled(options, name)
    folder, faults = options.out / name, []
    if options.check:
        faults = differences(folder, files)
        for fault in faults:
            complain(f"fwgen: {fault}")
    else:
        try:
            write_package(folder, files)
        except OSError as error:
            raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
    document: dict[str, Any] = {
        "name": name,
        "hash": compilation.rule.hash,
        "forms": list(compilation.signature.forms),
        "targets": list(_targets(options)),
        "files": list(files),
        "lines": sum(text.count("\n") for text in files.values()),
    }
    if options.check:
        document |= {"fresh": not faults, "stale": faults}
    if options.aot:
        document["aot"] = resources
    document["seconds"] = round(time.perf_counter() - start, 3)
    print_json(document) if options.json else _print(document, folder)
    return 1 if faults else 0


def _targets(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(t for t in ALL_TARGETS if t in (options.target or ALL_TARGETS))


def _compiled(
    options: argparse.Namespace, name: str
) -> tuple[Compilation, dict[str, str], list[dict[str, Any]]]:
    """The compilation, the files of its package, and what its kernels take with --aot."""
    from fwgen.commands.package import package_files
    from fwgen.driver import compile_rule

    if keyword.iskeyword(name):
        raise UsageError(f"a package cannot be called {name!r}, a word of Python; choose a --name")
    constants, maps = dict(options.set), dict(options.map)
    rule = open_rule(options.rule, constants, maps)
    compilation = compile_rule(rule, _targets(options), constants, maps)
    resources = _ahead_of_time(compilation, options.aot or ())
    files = package_files(
        compilation,
        name,
        targets=_targets(options),
        constants=constants,
        maps=maps,
        standalone=options.standalone,
        resources=resources,
    )
    return compilation, files, resources


def _recall(options: argparse.Namespace, rule: str) -> str:
    """The name of the package to check; its recorded settings stand where none are given."""
    from fwgen.commands.package import packages_of, recorded

    name = options.name or rule
    if options.name is None and not (options.out / rule).exists():
        found = packages_of(rule, options.out)
        if len(found) > 1:
            names = ", ".join(found)
            raise UsageError(f"{options.out} has several packages of {rule}: {names}; add --name")
        name = found[0] if found else rule
    settings = recorded(options.out / name)
    options.set = options.set or list(settings.constants.items())
    options.map = options.map or list(settings.maps.items())
    options.target = options.target or settings.targets
    options.aot = options.aot or settings.aot
    options.standalone = options.standalone or settings.standalone
    return name


def _ahead_of_time(compilation: Compilation, targets: tuple[str, ...]) -> list[dict[str, Any]]:
    """Registers, spills and shared memory of every Triton kernel for every target."""
    from fwgen.commands.aot import compile_ahead

    return [dict(row) for target in targets for row in compile_ahead(compilation, target)]


def _print(document: dict[str, Any], folder: Path) -> None:
    if "fresh" in document:
        print(f"{folder}: {'fresh' if document['fresh'] else 'not fresh'}")
    else:
        print(f"{document['name']}: forms {', '.join(document['forms'])}")
        for path in document["files"]:
            print(f"  {folder / path}")
        print(f"{document['lines']} lines in {document['seconds']:.1f} s")
    if "aot" in document:
        rows = [list(row) for row in document["aot"][:1]]
        print_table([*rows, *([str(v) for v in row.values()] for row in document["aot"])])
