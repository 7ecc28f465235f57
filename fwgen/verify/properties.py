"""Properties of a backend and form under drawn calls, and the smallest call that breaks one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, Verbosity, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from fwgen.errors import ArgumentError
from fwgen.runtime.op import CompiledRule
from fwgen.verify.compare import Row, compare
from fwgen.verify.problem import Case, collect, draw, with_room

Draws = tuple[tuple[str, str], ...]
LARGEST = 1e6
"""Calls whose results grow beyond this are drawn again: they would test overflow only."""


class DisagreementError(AssertionError):
    """A tensor is further from the golden than allowed."""


@dataclass
class Outcome:
    """What the properties found: the worst row per tensor, and the smallest failing case."""

    backend: str
    form: str
    cases: int = 0
    weighed: int = 0
    """Cases with at least one token; the others compare little but shapes."""
    rows: dict[str, Row] = field(default_factory=dict)
    failing: Case | None = None
    message: str = ""

    def add(self, rows: list[Row]) -> None:
        """Keep the row with the worst ratio of each tensor."""
        for row in rows:
            old = self.rows.get(row.tensor)
            if old is None or row.ratio > old.ratio:
                self.rows[row.tensor] = row

    def judge(self, case: Case, rows: list[Row]) -> None:
        """Count a case; raises DisagreementError where a row is wrong."""
        self.cases += 1
        self.weighed += case.tokens > 0 and (not case.lengths or any(case.lengths))
        wrong = [row for row in rows if not row.fine]
        if wrong:
            self.failing = case
            self.rows = {row.tensor: row for row in rows}
            raise DisagreementError(_sentence(wrong[0]))
        if self.failing is None:
            self.add(rows)


def strategy(op: CompiledRule, draws: Draws, backend: str) -> st.SearchStrategy[Case]:
    """Calls of moderate size; the Triton interpreter gets small ones in float32."""
    small = backend == "triton" and not torch.cuda.is_available()
    dtypes = ["float32"] if backend == "triton" else ["float32", "float64"]
    size = st.integers(1, 5 if small else 20)
    drawn = st.tuples(*(st.tuples(st.just(d), size) for d in op.signature.free_dims))
    sizes = drawn.map(lambda sizes: with_room(op.signature.room, sizes))
    lengths = st.lists(st.integers(0, 7), min_size=1, max_size=4).map(tuple)
    return st.builds(
        Case,
        sizes=sizes,
        draws=st.just(draws),
        batch=st.integers(1, 2),
        tokens=st.integers(0, 6 if small else 40),
        heads=st.integers(1, 2 if small else 3),
        seed=st.integers(0, 2**16),
        initial=st.booleans(),
        loss=st.sampled_from(["both", "y", "final"]),
        dtype=st.sampled_from(dtypes),
        layout=st.sampled_from(["dense", "padded", "heads first"]),
        grouped=st.booleans() if len(op.signature.inputs) > 1 else st.just(False),
        lengths=st.one_of(st.just(()), st.just(()), lengths),
        position=st.integers(0, 5),
    )


def _packed(op: CompiledRule, draws: Draws) -> Case:
    """The call that comes first: sequences, one of them empty, whose starts all have gradients."""
    sizes = with_room(op.signature.room, tuple((dim, 3) for dim in op.signature.free_dims))
    return Case(sizes, draws, initial=True, lengths=(2, 0, 3))


def evaluate(op: CompiledRule, case: Case, **options: Any) -> list[Row] | None:
    """Run a case and compare; None when its results are too large to judge."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    problem = draw(op.signature, case)
    golden = collect(problem.map(torch.Tensor.double), op.reference, case.loss)
    if any(not bool((t.abs() < LARGEST).all()) for t in golden.values()):
        return None
    eager = [collect(problem.map(torch.Tensor.float), op.reference, case.loss)]
    for start in (1, 2):
        moved = problem.map(_moved(case.seed + start))
        eager.append(collect(moved, op.reference, case.loss))
    device = "cuda" if options.get("backend") == "triton" and torch.cuda.is_available() else "cpu"
    mine = problem if device == "cpu" else problem.map(lambda t: t.to(device))
    got = collect(mine, op, case.loss, **options)
    return compare({n: t.cpu() for n, t in got.items()}, golden, eager, dtype)


def _moved(start: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A change that moves every number by up to one rounding of float32, in float64."""
    generator = torch.Generator().manual_seed(start)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return tensor.double() * (1 + torch.finfo(torch.float32).eps * noise)

    return change


def check_form(
    op: CompiledRule,
    draws: Draws,
    backend: str,
    form: str,
    cases: int = 20,
    start: int = 0,
    *,
    before: Callable[[Case], None] = lambda case: None,
) -> Outcome:
    """Draw `cases` calls from seed `start`, stop at a failure and shrink it.

    `draws` says how to draw each tensor, by name; `before` is called with every case.
    Raises UnsupportedError when the rule or machine cannot serve this backend or form at all.
    """
    outcome = Outcome(backend, form)

    def judged(case: Case) -> bool:
        before(case)
        try:
            rows = evaluate(op, case, backend=backend, form=form)
        except ArgumentError:  # sizes that this rule does not allow
            return False
        if rows is not None:
            outcome.judge(case, rows)
        return rows is not None

    def drawn(case: Case) -> None:
        assume(judged(case))

    try:
        judged(_packed(op, draws))
    except DisagreementError as error:
        outcome.message = str(error)  # unless a smaller call is found that is wrong
    try:
        seed(start)(_quiet(cases)(given(strategy(op, draws, backend))(drawn)))()
    except DisagreementError as error:
        outcome.message = str(error)
    except HypothesisException as error:  # such as a result that changes from run to run
        outcome.message = f"{type(error).__name__}: {error}"
    if not outcome.weighed and not outcome.message:
        outcome.message = (
            "no call with tokens could be judged: none was drawn, or the reference itself gave "
            "NaN, infinite or huge values for all of them"
        )
    return outcome


def _quiet(cases: int) -> settings:
    """So many draws without a word of Hypothesis, shrunk where one fails.

    One more comes before them, see `_packed`.
    """
    return settings(
        max_examples=max(cases - 1, 1),
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def _sentence(row: Row) -> str:
    return f"{row.tensor}: error {row.error:.2e}, allowed {row.allowed:.2e}"


def show(op: CompiledRule, case: Case, *, backend: str, form: str = "auto") -> None:
    """Print the errors of one case: what the snippet of a failing `fwgen check` calls."""
    rows = evaluate(op, case, backend=backend, form=form)
    for row in rows or ():
        print(f"{'ok   ' if row.fine else 'WRONG'} {_sentence(row)}")
