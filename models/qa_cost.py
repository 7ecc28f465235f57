"""What a look-up costs by the length of the document: a memory of fixed size beside all states.

    python -m fwgen.models.qa_cost --lengths 100,1000,10000 --d-model 100

The document is read before; a look-up is one question against its memory. With n states of size k
attention keeps all of them, as keys and as values, and reads all; a memory of fixed size is k k.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

import fwgen

from . import options
from .attention_config import AttentionConfig
from .figures import text_table
from .qa import make_lookup, memory_numbers
from .settings import at_least

RULES = ("softmax", "cheap_linear", "gated_cheap_linear")


@torch.no_grad()
def measure(
    rules: Sequence[str],
    lengths: Sequence[int],
    d_model: int,
    documents: int = 16,
    rounds: int = 30,
) -> list[dict[str, Any]]:
    """Median seconds of a look-up in each of `documents`, and numbers kept per document.

    The rules take turns within a round, so that a busy machine slows all of them alike.
    """
    for name, value in (("d_model", d_model), ("documents", documents), ("rounds", rounds)):
        at_least(name, value, 1)
    rows = []
    for n in lengths:
        at_least("lengths", n, 1)
        states = torch.tanh(torch.randn(documents, n, d_model))
        real = torch.ones(documents, n, dtype=torch.bool)
        question = torch.randn(documents, 1, d_model)
        lookups = {rule: make_lookup(AttentionConfig(rule), d_model) for rule in rules}
        memories = {rule: lookup.write(states, real) for rule, lookup in lookups.items()}
        times: dict[str, list[float]] = {rule: [] for rule in rules}
        for turn in range(rounds + 2):
            for rule, lookup in lookups.items():
                start = time.perf_counter()
                lookup.read(question, memories[rule])
                if turn > 1:  # the first ones warm up
                    times[rule].append(time.perf_counter() - start)
        rows += [
            {
                "rule": rule,
                "tokens": n,
                "numbers": memory_numbers(memories[rule]),
                "seconds": median(times[rule]),
            }
            for rule in rules
        ]
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line per length and rule, as text."""
    heads = ["look-up", "tokens", "numbers kept", "microseconds"]
    lines = [
        [r["rule"], f"{r['tokens']:,}", f"{r['numbers']:,}", f"{1e6 * r['seconds']:,.0f}"]
        for r in rows
    ]
    return text_table([heads, *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fwgen.models.qa_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--lengths", default="100,1000,10000", metavar="N[,N...]")
    parser.add_argument("--d-model", type=int, default=100, metavar="K")
    parser.add_argument("--documents", type=int, default=16, metavar="B", help="at once")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of PyTorch")
    args = parser.parse_args(arguments)
    try:
        options.use_threads(args)
        lengths = [options.whole("--lengths", text) for text in args.lengths.split(",")]
        rows = measure(RULES, lengths, args.d_model, args.documents, args.rounds)
    except fwgen.ArgumentError as error:
        print(f"fwgen: error: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
