"""Runs every shipped rule on a GPU: correct or not, and how fast; run.sh says how it is called.

Every rule has a process of its own, several at a time, since most of the time goes into compiling
kernels. What they print is a JSON object; timings follow one rule after the other.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from peers import PEERS, Shape, milliseconds, peer_times

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "triton")]

NO_DEVICE = 3
SHARE = 0.75
"""Part of the budget after which only timings start."""


def judge(name: str, device: str, tokens: int, size: int) -> dict[str, object]:
    """Whether a rule's kernels agree with the loop written from the mathematics."""
    import shipped

    import fwgen
    import problems
    from witnesses import WITNESSES, table

    table.BASE_SIZES.update(dict.fromkeys(("K", "V", "D", "M", "J"), size))
    w, op = WITNESSES[name], fwgen.compile(name)

    def run(p):
        return problems.run_op(op, p, backend="triton")

    def run_packed(p):
        return shipped.run_packed(op, p, backend="triton")

    faults = {}
    for case, dtype in (("call", torch.float32), ("half", torch.bfloat16), ("packed", None)):
        try:
            if dtype is None:
                shipped.compare(
                    w, shipped.packed(w), run_packed, shipped.witness_packed, device=device
                )
            else:
                p = problems.draw(w, tokens, B=1, H=2)
                shipped.compare(w, p, run, dtype=dtype, device=device)
        except Exception as fault:
            faults[case] = f"{type(fault).__name__}: {fault}"[:400]
    return {"rule": name, "faults": faults}


def clock(name: str, device: str, shape: Shape) -> dict[str, float]:
    """Milliseconds of a forward and a backward call at a shape, and those of its peer."""
    import fwgen

    op = fwgen.compile(name)
    signature = op.signature
    sizes = {
        dim: {"K": shape.K, "V": shape.V}.get(dim, min(shape.K, 64)) for dim in signature.free_dims
    }
    tensors = shape.tensors(signature, sizes, device)
    found = milliseconds(
        lambda *x: op(*x, **tensors.named, backend="triton")[0], tensors.inputs, device
    )
    return {**found, **peer_times(name, tensors, device)}


def child(arguments: list[str], limit: float) -> dict[str, object]:
    """What a process of this script prints as its last line."""
    command = [sys.executable, "-W", "ignore", str(HERE / "drive.py"), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, limit))
    except subprocess.TimeoutExpired:
        return {"faults": {"time": f"not done after {limit:.0f} s"}}
    if run.returncode != 0:
        return {"faults": {"process": run.stderr.strip()[-400:]}}
    found: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return found


def measure(options: argparse.Namespace, names: list[str]) -> list[dict[str, object]]:
    """A row per rule: faults, and timings of those that are right."""
    start = time.monotonic()
    common = [
        "--device",
        options.device,
        "--tokens",
        str(options.tokens),
        "--size",
        str(options.size),
    ]
    common += ["--shape", options.shape]

    def left() -> float:
        return options.budget - (time.monotonic() - start)

    def judged(name: str) -> dict[str, object]:
        if left() < (1 - SHARE) * options.budget:
            return {"rule": name, "faults": {"time": "did not get its turn"}}
        return {"rule": name, **child(["--judge", name, *common], left())}

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(judged, names))
    for row in rows:
        if not row["faults"] and left() > 5:
            row |= child(["--clock", str(row["rule"]), *common], left())
    return rows


def show(rows: list[dict[str, object]]) -> None:
    """One table, then what went wrong."""
    heads = ("rule", "right", "forward ms", "backward ms", "fla forward", "fla backward")
    keys = ("forward", "backward", "fla forward", "fla backward")
    lines = [heads]
    for row in rows:
        times = [f"{row[key]:.2f}" if key in row else "-" for key in keys]
        lines.append((str(row["rule"]), "no" if row["faults"] else "yes", *times))
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    for line in lines:
        print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )
    for row in rows:
        for case, fault in dict(row["faults"]).items():  # type: ignore[call-overload]
            print(f"\n{row['rule']}, {case}: {fault}", file=sys.stderr)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", help="only these, separated by commas")
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for everything")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--tokens", type=int, default=130, help="T of the comparison")
    parser.add_argument("--size", type=int, default=40, help="K = V of the comparison")
    parser.add_argument("--shape", default="4,2048,8,64,64", help="B,T,H,K,V of the timings")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--judge", help=argparse.SUPPRESS)
    parser.add_argument("--clock", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parsed()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is False", file=sys.stderr)
        return NO_DEVICE
    shape = Shape(*map(int, options.shape.split(",")))
    if options.judge:
        print(json.dumps(judge(options.judge, options.device, options.tokens, options.size)))
        return 0
    if options.clock:
        print(json.dumps(clock(options.clock, options.device, shape)))
        return 0
    import fwgen

    names = options.rules.split(",") if options.rules else fwgen.list_rules()
    print(f"torch {torch.__version__}, B, T, H, K, V = {options.shape}, peers: {', '.join(PEERS)}")
    rows = measure(options, names)
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return int(any(row["faults"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
