"""Puts real output into the documentation.

A fenced block that follows a line `<!-- $ COMMAND -->` holds what the command prints. Run without
arguments to make all blocks again, with `--check` to exit 1 when one is stale. Commands are
`fwgen ...`, run in `docs/examples`, and `show FILE [PATTERN COUNT]`, which prints a file or COUNT
lines of it from the first with the pattern on; `| head -N` cuts either.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "docs" / "examples"
PAGES = (ROOT / "README.md", ROOT / "docs" / "architecture.md")
MARK = r"(<!-- \$ (?P<command>[^\n]+) -->\n```\w*\n)"
BLOCK = re.compile(MARK + r"(?P<text>.*?)(?P<end>^```$)", re.M | re.S)


def output(command: str) -> str:
    """What a command of the documentation prints, results and messages together."""
    command, _, limit = command.partition(" | head -")
    if limit:
        return "".join(output(command).splitlines(keepends=True)[: int(limit)]) + "...\n"
    name, *arguments = shlex.split(command)
    if name == "show":
        return show(*arguments)
    if name != "fwgen":
        raise SystemExit(f"unknown command: {command}")
    done = subprocess.run(
        [sys.executable, "-m", "fwgen", *arguments],
        cwd=EXAMPLES,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    if done.returncode > 1:
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stdout}")
    return done.stdout.rstrip("\n") + "\n"


def show(path: str, pattern: str = "", count: str = "0") -> str:
    """A file, or `count` lines from the first one that has `pattern`, without their indent."""
    lines = (ROOT / path).read_text("utf-8").splitlines()
    if pattern:
        start = next(n for n, line in enumerate(lines) if pattern in line)
        lines = lines[start : start + int(count)]
    return textwrap.dedent("\n".join(lines)) + "\n"


def renewed(page: str) -> str:
    """The page with every block made again."""
    return BLOCK.sub(lambda m: m[1] + output(m["command"]) + m["end"], page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    check = parser.parse_args().check
    stale = []
    for path in PAGES:
        old = path.read_text("utf-8")
        new = renewed(old)
        if new == old:
            continue
        stale.append(path.name)
        if not check:
            path.write_text(new, "utf-8")
    if check and stale:
        print(f"stale: {', '.join(stale)}; run `make docs`", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
