"""Rules drawn at random under Triton's interpreter, against the second evaluator.

Run as `python drawn.py FORM COUNT SEED` with TRITON_INTERPRET=1, FORM being `registers` or
`memory`: draws COUNT rules and exits 1 with the text of a small one that goes wrong.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import torch
from hypothesis import HealthCheck, assume, given, seed, settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from forms import choose

import fwgen
import problems
import random_rules

LARGEST = 1e4  # beyond, a rule that squares its state tells nothing about a compiler


def check(rule):
    w = rule.witness()
    p = problems.draw(w, 4, B=1, H=2)
    want = problems.collect(p, lambda q: problems.run_witness(w, q))
    assume(all(bool((t.abs() < LARGEST).all()) for t in want.values()))
    p = p.to(torch.float32)
    want = problems.collect(p.to(torch.float64), lambda q: problems.run_witness(w, q))
    eager = problems.collect(p, lambda q: problems.run_witness(w, q))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unused inputs are no fault of a drawn rule
        path = Path(folder, "random_rule.yaml")
        path.write_text(rule.text, "utf-8")
        op = fwgen.compile(str(path))
    got = problems.collect(p, lambda q: problems.run_op(op, q, backend="triton"))
    problems.compare(got, want, eager, torch.float32)


def main(form, count, number):
    choose(form)
    options = settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    seed(number)(options(given(random_rules.rules())(check)))()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
