"""Prints the largest files and functions: a habit to watch, not a gate."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES, FUNCTION_LINES = 300, 40


def functions(path: Path) -> list[tuple[int, str]]:
    tree = ast.parse(path.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [n for n in ast.walk(tree) if isinstance(n, kinds)]
    return [((n.end_lineno or n.lineno) - n.lineno + 1, f"{path}:{n.name}") for n in found]


def main() -> None:
    paths = [
        p.relative_to(Path.cwd()) for top in ("fwgen", "models") for p in (ROOT / top).rglob("*.py")
    ]
    files = sorted(((len(p.read_text("utf-8").splitlines()), str(p)) for p in paths), reverse=True)
    each = sorted((f for p in paths for f in functions(p)), reverse=True)
    lengths = [n for n, _ in each]
    print(f"{len(files)} files, {sum(n for n, _ in files)} lines, {len(each)} functions")
    print(
        f"functions: median {lengths[len(lengths) // 2]}, p90 {lengths[len(lengths) // 10]} lines"
    )
    for limit, what, found in ((FILE_LINES, "file", files), (FUNCTION_LINES, "function", each)):
        for lines, name in [entry for entry in found if entry[0] > limit][:12]:
            print(f"{what} of {lines} lines: {name}")


if __name__ == "__main__":
    main()
