"""Measures what the Triton kernels of every shipped rule take on GPUs that are not there.

`python docs/aot.py [-j N] [RULE...]` compiles the recurrent kernels (step, forward, backward) for
sm_90, sm_80 and gfx942 at sizes of 64 and 128, and writes the table into docs/gpu.md. With names of
rules it prints their rows and writes nothing. No GPU is needed; all rules take about an hour of one
core, so results go to `runs/aot.jsonl` as they come, and a second run starts from there where the
generated kernels are still the same. `--known` measures nothing and writes what is there; rules
that lack something are named in the page.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gpu.md"
NOTES = ROOT / "runs" / "aot.jsonl"
TARGETS = ("sm_90", "sm_80", "gfx942")
SIZES = (64, 128)
KERNELS = ("recurrent_step", "recurrent_forward", "recurrent_backward")
MARK = "<!-- measured by `python docs/aot.py` -->\n"

Row = dict[str, Any]


def digest(name: str) -> str:
    """What the rows of a rule depend on."""
    import triton
    from fwgen.driver import compile_rule
    from fwgen.language import load_rule

    sources = compile_rule(load_rule(name), ("triton",)).sources
    text = json.dumps([triton.__version__, {f: s for f, s in sources.items() if "triton" in f}])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measured(name: str, target: str, size: int, key: str) -> list[Row]:
    """The rows of a rule on a target at a size."""
    import warnings

    warnings.simplefilter("ignore")
    from fwgen.commands.aot import compile_ahead
    from fwgen.driver import compile_rule
    from fwgen.language import load_rule

    compilation = compile_rule(load_rule(name), ("triton",))
    rows = compile_ahead(compilation, target, size=size)
    return [{"rule": name, "size": size, "digest": key, **row} for row in rows]


def noted() -> list[Row]:
    if not NOTES.exists():
        return []
    return [json.loads(line) for line in NOTES.read_text("utf-8").splitlines()]


def known_rows(names: list[str]) -> tuple[list[Row], dict[str, str]]:
    """The rows that are noted for kernels as they are now, and the digest of every rule."""
    keys = {name: digest(name) for name in names}
    return [row for row in noted() if keys.get(row["rule"]) == row["digest"]], keys


def measure(names: list[str], jobs: int) -> list[Row]:
    """All rows of the rules; known ones are not measured again."""
    rows, keys = known_rows(names)
    known = {(row["rule"], row["target"], row["size"]) for row in rows}
    missing = [
        (name, target, size, keys[name])
        for target in TARGETS
        for size in SIZES
        for name in names
        if (name, target, size) not in known
    ]
    NOTES.parent.mkdir(exist_ok=True)
    with ProcessPoolExecutor(jobs) as pool, NOTES.open("a", encoding="utf-8") as notes:
        for found in pool.map(measured, *zip(*missing, strict=True)) if missing else ():
            rows += found
            notes.writelines(json.dumps(row) + "\n" for row in found)
            notes.flush()
    return rows


def table(rows: list[Row]) -> Iterator[str]:
    """Markdown lines: a line per rule, size and kernel, a column per target."""
    yield f"| rule | size | kernel | states in | {' | '.join(TARGETS)} |"
    yield "| --- | --- | --- | --- |" + " --- |" * len(TARGETS)
    cells = {(r["rule"], r["size"], r["kernel"], r["target"]): r for r in rows}
    for name in sorted({r["rule"] for r in rows}):
        for size in SIZES:
            for kernel in KERNELS:
                found = [cells.get((name, size, kernel, target)) for target in TARGETS]
                places = {r["states"] for r in found if r}
                texts = [cell(r) if r else "" for r in found]
                short = kernel.removeprefix("recurrent_")
                yield f"| {name} | {size} | {short} | {'/'.join(places)} | {' | '.join(texts)} |"


def cell(row: Row) -> str:
    """`128 / 0 / 1024 / 0`: registers, spilled bytes, shared bytes, tensor-core instructions."""
    keys = ("registers", "spill_bytes", "shared_bytes", "tensor_core_ops")
    return " / ".join(str(row[key]) for key in keys)


def summary(rows: list[Row]) -> Iterator[str]:
    """Markdown lines: kernels and spills by target."""
    import triton

    yield f"Triton {triton.__version__}, float32 inputs, T = 256."
    yield ""
    yield "| target | kernels | with spills | most spilled bytes |"
    yield "| --- | --- | --- | --- |"
    for target in TARGETS:
        own = [r for r in rows if r["target"] == target]
        spilled = [r["spill_bytes"] for r in own if r["spill_bytes"]]
        yield f"| {target} | {len(own)} | {len(spilled)} | {max(spilled, default=0)} |"


def main() -> None:
    import fwgen

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", nargs="*", metavar="RULE")
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--known", action="store_true", help="measure nothing")
    options = parser.parse_args()
    names = options.rules or fwgen.list_rules()
    rows = known_rows(names)[0] if options.known else measure(names, options.jobs)
    full = len(TARGETS) * len(SIZES) * len(KERNELS)
    counts = {name: sum(row["rule"] == name for row in rows) for name in names}
    missing = [name for name in names if counts[name] < full]
    rows = [row for row in rows if row["rule"] not in missing]
    text = "\n".join([*summary(rows), "", *table(rows)]) + "\n"
    if missing:
        text += f"\nNot measured since their kernels changed last: {', '.join(missing)}.\n"
    if options.rules:
        print(text)
        return
    page = PAGE.read_text("utf-8")
    head = re.split(re.escape(MARK), page)[0]
    PAGE.write_text(head + MARK + "\n" + text, "utf-8")


if __name__ == "__main__":
    main()
