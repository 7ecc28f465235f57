"""`fwgen bench`: a rule's kernels beside plain PyTorch, interleaved in one run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fwgen.commands.common import (
    add_rule_arguments,
    choices,
    command,
    complain,
    count,
    open_rule,
    print_json,
    print_table,
)
from fwgen.errors import ArgumentError

if TYPE_CHECKING:
    from fwgen.bench.measure import Call, Measurement
    from fwgen.language import Rule

CONTENDERS = ("loop", "chunk", "softmax")
MANUAL = """\
Times forward (F) and forward with backward (F+B) of the public operator on the CPU, results
allocated anew in every call, beside other ways of computing the same: the generated token loop
under autograd (loop), the chunkwise PyTorch form where one is known for a shipped rule (chunk), and
causal softmax attention of the same shape where the rule has q, k and v (softmax; not the same
function). Contenders take turns in one process; medians, their ratios to fwgen, the rise of
resident memory, and the fraction of the machine's measured multiply-add peak are printed. Only
ratios within one run mean something, and only on a quiet machine; others' load is reported.

The loop over tokens takes most of the time: it runs three times at most, and once where a call of
it takes a second. --against chunk,softmax leaves it out.

All named dims but V get the size K. --static prints work, traffic and the least possible time from
the formulas, without running anything.

example:
  fwgen bench deltanet
  fwgen bench deltanet gated_delta --shape 4,2048,8,64,64 --against chunk
  fwgen bench my_rule.yaml --static --json
"""


def add(subparsers: Any) -> None:
    """Add the command."""
    parser = command(subparsers, "bench", run, "time a rule beside plain PyTorch", MANUAL)
    add_rule_arguments(parser, many=True)
    parser.add_argument(
        "--shape",
        metavar="B,T,H,K,V",
        type=_shape,
        default=(2, 512, 4, 64, 64),
        help="batch, tokens, heads, key and value size (default: 2,512,4,64,64)",
    )
    parser.add_argument(
        "--against",
        metavar="LIST",
        type=choices(*CONTENDERS),
        help="contenders, separated by commas (default: loop,chunk,softmax where they exist)",
    )
    parser.add_argument(
        "--rounds", metavar="N", type=count, default=7, help="timed rounds (default: 7)"
    )
    parser.add_argument("--static", action="store_true", help="print bounds, run nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _say(text: str) -> None:
    complain(f"fwgen: {text}")


def _shape(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if len(parts) != 5:
        raise argparse.ArgumentTypeError(f"expected B,T,H,K,V, got {text!r}")
    return tuple(count(part) for part in parts)


def run(options: argparse.Namespace) -> int:
    """Measure every rule, or print its bounds."""
    from fwgen.bench.timing import BUSY, Quiet

    constants, maps = dict(options.set), dict(options.map)
    rules = [open_rule(source, constants, maps) for source in options.rules]
    if options.static:
        found = [_bounds(rule, options.shape) for rule in rules]
        if options.json:
            print_json({"shape": list(options.shape), "rules": found})
        else:
            _print_bounds(found)
        return 0
    with Quiet() as quiet:
        rows = [row for rule in rules for row in _measured(rule, options)]
    busy = quiet.others > BUSY
    if options.json:
        print_json(
            {
                "shape": list(options.shape),
                "rows": [row.document() for row in rows],
                "others": round(quiet.others, 3),
                "quiet": not busy,
            }
        )
    else:
        _print(rows)
    if busy:
        _say(
            f"others used {quiet.others:.2f} processors meanwhile; measure again when the machine "
            "is quiet"
        )
    return 0


def _measured(rule: Rule, options: argparse.Namespace) -> list[Measurement]:
    """The rows of one rule; what was asked for and does not exist is said."""
    import fwgen
    from fwgen.bench.measure import measure

    try:
        rows = measure(
            fwgen.compile(rule),
            _call(rule, options.shape),
            options.against or CONTENDERS,
            options.rounds,
            _work(rule, options.shape),
            _say,
        )
    except ArgumentError as error:
        raise ArgumentError(f"--shape does not fit the rule: {error}") from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise ArgumentError("--shape: too large for the memory of this machine") from error
        raise
    for word in options.against or ():
        if not any(row.contender.startswith(word) for row in rows):
            _say(f"{rule.name}: there is no contender `{word}` for this rule at this shape")
    return rows


def _call(rule: Rule, shape: tuple[int, ...]) -> Call:
    """A drawn call of that shape."""
    import fwgen
    from fwgen.bench.measure import Call
    from fwgen.commands.draws import draws
    from fwgen.language import lower
    from fwgen.verify import Case, draw

    B, T, H, *_ = shape
    sizes = tuple(_sizes(rule, shape).items())
    case = Case(sizes, draws(lower(rule)), B, T, H, loss="y")
    problem = draw(fwgen.compile(rule).signature, case)
    keywords = {"params": problem.params, "buffers": problem.buffers, **problem.options}
    return Call(problem.inputs, keywords, problem.weights["y"])


def _sizes(rule: Rule, shape: tuple[int, ...]) -> dict[str, int]:
    """V is V, every other named dim is K."""
    from fwgen.emit.signature import free_dims
    from fwgen.language import lower

    return {dim: shape[4] if dim == "V" else shape[3] for dim in free_dims(lower(rule))}


def _work(rule: Rule, shape: tuple[int, ...]) -> tuple[int, int]:
    """FLOPs of the whole call, forward and both passes."""
    found = _bounds(rule, shape)
    scale = shape[0] * shape[1] * shape[2]
    return found["F"]["flops"] * scale, found["F+B"]["flops"] * scale


def _bounds(rule: Rule, shape: tuple[int, ...]) -> dict[str, Any]:
    """Work and traffic per token and head, and the time that the work alone takes.

    The least time counts the formulas as they are written, at the measured multiply-add peak.
    """
    from fwgen.bench.machine import peak_flops
    from fwgen.driver import compile_rule
    from fwgen.emit.costs import bytes_backward, bytes_forward, flops, flops_backward

    made, sizes = compile_rule(rule, targets=()), _sizes(rule, shape)
    forward = flops(made.backward.forward.statements).evaluate(sizes)
    both = forward + flops_backward(made.backward).evaluate(sizes)
    traffic = bytes_forward(made.step).evaluate(sizes)
    back = traffic + bytes_backward(made.backward).evaluate(sizes)
    rate, tokens = peak_flops()[0], shape[0] * shape[1] * shape[2]

    def row(work: int, moved: int) -> dict[str, Any]:
        return {"flops": work, "bytes": moved, "least_seconds": work * tokens / rate}

    return {
        "name": rule.name,
        "peak_flops": rate,
        "F": row(forward, traffic),
        "F+B": row(both, back),
    }


def _print(rows: list[Measurement]) -> None:
    table = [("rule", "pass", "contender", "ms", "least", "ratio", "memory MB", "of peak")]
    for row in rows:
        memory = "" if row.memory is None else f"{row.memory / 1e6:.1f}"
        peak = "" if row.peak is None else f"{row.peak:.3f}"
        times = (f"{1e3 * row.median:.3f}", f"{1e3 * row.least:.3f}", f"{row.ratio:.2f}")
        table.append((row.rule, row.label, row.contender, *times, memory, peak))
    print_table(table, right=(3, 4, 5, 6, 7))


def _print_bounds(found: list[dict[str, Any]]) -> None:
    table = [("rule", "pass", "FLOPs per token", "bytes per token", "least ms")]
    for rule in found:
        for label in ("F", "F+B"):
            row = rule[label]
            least = f"{1e3 * row['least_seconds']:.3f}"
            table.append((rule["name"], label, str(row["flops"]), str(row["bytes"]), least))
    print_table(table, right=(2, 3, 4))
