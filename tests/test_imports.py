"""Imports run one way, read from the ast: who may use whom, who may see sympy or torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PIPELINE = {"errors", "ir", "language", "algebra", "schedule", "emit", "driver"}
# Part -> the parts of `fwgen` that it may import, beside itself. `fwgen` is the public API.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "ir": {"errors"},
    "language": {"errors", "ir", "features"},
    "algebra": {"errors", "ir"},
    "schedule": {"errors", "ir"},
    "emit": {"errors", "ir", "schedule", "templates"},
    "runtime": {"errors"},
    "driver": {"errors", "ir", "language", "algebra", "schedule", "emit", "runtime"},
    "rules": set(),
    "features": {"errors"},
    "templates": set(),
    "verify": {"fwgen", "errors", "runtime"},
    "bench": {"fwgen", "errors", "runtime"},
    "models": {"fwgen", "features", "bench"},  # random features of FAVOR+; clocks
    "__main__": {"cli"},
    # The front: `fwgen` offers the API, `cli` and its `commands` everything.
    "__init__": {"errors", "features", "language", "driver", "runtime"},
    "cli": {"fwgen", "errors", "commands", "models"},
    "commands": {"fwgen", *PIPELINE, "cli", "runtime", "verify", "bench", "models"},
}
# Plain data that crosses the order: what the runtime must know of a rule is written by `emit`.
DATA = {"emit": {"fwgen.runtime.signature"}}
# Seen by the type checker only: the results of the algebra are read, its code is not loaded.
TYPES = {"schedule": {"algebra"}, "emit": {"algebra"}}
SYMPY = {"algebra"}
# Stages between the rule and the text of a kernel compute with nothing.
NO_TORCH = {"errors", "language", "ir", "algebra", "schedule", "emit", "driver"}


def part_of(path: Path) -> str:
    """`fwgen/ir/walk.py` -> `ir`, `fwgen/cli.py` -> `cli`, `models/lm.py` -> `models`."""
    relative = path.relative_to(ROOT)
    return relative.parts[0] if relative.parts[0] != "fwgen" else Path(relative.parts[1]).stem


def sources() -> list[Path]:
    return sorted([*(ROOT / "fwgen").rglob("*.py"), *(ROOT / "models").rglob("*.py")])


@dataclass(frozen=True)
class Import:
    """One imported name in full, its line, and whether only the type checker sees it."""

    name: str
    line: int
    typing: bool


def imported(tree: ast.AST, package: str, typing: bool = False) -> Iterator[Import]:
    """Everything that a file imports, also inside functions."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import(names):
                yield from (Import(alias.name, node.lineno, typing) for alias in names)
            case ast.ImportFrom(module, names, level):
                above = package.rsplit(".", level - 1)[0] if level else ""
                base = ".".join(filter(None, [above, module]))
                yield from (Import(f"{base}.{a.name}", node.lineno, typing) for a in names)
            case ast.If(ast.Name("TYPE_CHECKING"), body, []):
                yield from imported(ast.Module(body, []), package, typing=True)
            case _:
                yield from imported(node, package, typing)


def target_of(name: str) -> str | None:
    """The part of `fwgen` that a dotted name lies in; None for other packages."""
    head, *rest = name.split(".")
    if head != "fwgen":
        return None
    return rest[0] if rest and rest[0] in ALLOWED else "fwgen"


def package_of(path: Path) -> str:
    names = list(path.relative_to(ROOT).parent.parts)
    return ".".join(names if names[0] == "fwgen" else ["fwgen", *names])


def may_import(part: str, found: Import) -> bool:
    """Whether a part may use a name of `fwgen`."""
    target = target_of(found.name)
    # `from fwgen import __version__` is a constant, not a use of the API above.
    if target in (None, part) or found.name == "fwgen.__version__":
        return True
    if any(found.name.startswith(name) for name in DATA.get(part, ())):
        return True
    return target in ALLOWED[part] or (found.typing and target in TYPES.get(part, ()))


def faults(path: Path, text: str) -> list[str]:
    """What a file imports against the order, one line each."""
    part, wrong = part_of(path), []
    for found in imported(ast.parse(text), package_of(path)):
        top, place = found.name.split(".")[0], f"{path.name}:{found.line}: {part}"
        if not may_import(part, found):
            wrong.append(f"{place} imports {found.name}")
        if top == "sympy" and part not in SYMPY:
            wrong.append(f"{place} imports sympy")
        if top == "torch" and part in NO_TORCH and not found.typing:
            wrong.append(f"{place} imports torch")
    return wrong


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path):
    assert part_of(path) in ALLOWED, f"{path.name}: a part that the order does not know"
    assert not faults(path, path.read_text("utf-8"))


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("fwgen/ir/walk.py", "from fwgen.language import lower"),
        ("fwgen/ir/walk.py", "from ..language import lower"),
        ("fwgen/ir/walk.py", "import sympy as sp"),
        ("fwgen/emit/triton.py", "def f():\n    import sympy.core"),
        ("fwgen/emit/cpu.py", "from fwgen.algebra.normal import Normal"),
        ("fwgen/emit/cpu.py", "from fwgen.runtime.op import CompiledRule"),
        ("fwgen/runtime/op.py", "from fwgen.ir.nodes import Step"),
        ("fwgen/runtime/op.py", "from fwgen import driver"),
        ("fwgen/algebra/backward.py", "import torch.nn"),
        ("models/lm.py", "from fwgen.runtime.op import CompiledRule"),
        ("models/lm.py", "from fwgen import driver"),
    ],
)
def test_the_walk_sees_a_forbidden_import(where, line):
    assert faults(ROOT / where, line)


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("fwgen/ir/walk.py", "from .nodes import Step"),
        ("fwgen/ir/walk.py", "from fwgen.errors import InternalError\nimport numpy"),
        ("fwgen/runtime/op.py", "import torch"),
        ("fwgen/emit/cpu.py", "if TYPE_CHECKING:\n    from fwgen.algebra.normal import Normal"),
        ("fwgen/emit/signature.py", "from fwgen.runtime.signature import Signature"),
        ("models/lm.py", "import fwgen\nfrom .train import fit"),
    ],
)
def test_the_walk_allows_what_is_allowed(where, line):
    assert not faults(ROOT / where, line)


@pytest.mark.parametrize("module", ["fwgen", "fwgen.schedule", "fwgen.emit", "fwgen.runtime"])
def test_sympy_is_not_loaded_before_something_is_compiled(module):
    code = f"import sys, {module}; sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
