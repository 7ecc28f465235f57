"""Carries out the equations of a report as they are printed, number by number.

Knows nothing of the compiler: a line `d_k[j] = sum_i d_W[i, j] * u[i] - d_p * q[j]` is split at its
signs, and every term is evaluated by Python for all values of its letters.

Numbers have `DIGITS` decimal digits, so that differences of a page's results are derivatives to far
more digits than a double has: nothing cancels, and no kink is near enough to be stepped over.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np

Values = dict[str, np.ndarray]
Number = Any  # of mpmath, which has no types
Frozen = dict[tuple[Any, ...], Number]

DIGITS = 60
exact = mpmath.MPContext()
exact.dps = DIGITS
FUNCTIONS: dict[str, Callable[..., Number]] = {
    "exp": exact.exp,
    "log": exact.log,
    "log1p": exact.log1p,
    "expm1": exact.expm1,
    "erf": exact.erf,
    "sqrt": exact.sqrt,
    "rsqrt": lambda x: 1 / exact.sqrt(x),
    "abs": abs,
    "sign": exact.sign,
    "sin": exact.sin,
    "cos": exact.cos,
    "tanh": exact.tanh,
    "sigmoid": lambda x: 1 / (1 + exact.exp(-x)),
    "logsigmoid": lambda x: -exact.log1p(exact.exp(-x)),
    "softplus": lambda x: exact.log1p(exact.exp(x)),
    "relu": lambda x: max(x, 0),
    "elu": lambda x: x if x > 0 else exact.expm1(x),
    "silu": lambda x: x / (1 + exact.exp(-x)),
    "gelu": lambda x: x * (1 + exact.erf(x / exact.sqrt(2))) / 2,
    "square": lambda x: x * x,
    "maximum": max,
    "minimum": min,
    "clamp": lambda x, low, high: min(max(x, low), high),
}
FOLDS: dict[str, Callable[[Iterator[Number]], Number]] = {"sum": sum, "max": max, "min": min}


def numbers(array: Any) -> np.ndarray:
    """An array of `DIGITS` digits."""
    found = np.empty(np.shape(array), dtype=object)
    for place, value in np.ndenumerate(np.asarray(array)):
        found[place] = value if isinstance(value, exact.mpf) else exact.mpf(float(value))
    return found


def paragraphs(text: str, section: str) -> list[list[str]]:
    """The blocks of equations of a section, continued lines put together."""
    body = re.search(rf"^{section}\n(.*?)(?=^\w|\Z)", text, re.M | re.S)
    assert body, section
    found: list[list[str]] = [[]]
    for line in body[1].splitlines():
        if line.startswith("        "):
            found[-1][-1] += " " + line.strip()
        elif line.startswith("    ") and " = " in line.replace(" += ", " = "):
            found[-1].append(line.strip())
        elif found[-1]:
            found.append([])
    return [block for block in found if block]


class Page:
    """The equations of one section, ready to run."""

    def __init__(self, lines: list[str], sizes: Mapping[str, int], t: int = 0) -> None:
        self.equations = [_Equation(line) for line in lines]
        self.sizes, self.t = dict(sizes), t

    def run(self, values: Values, frozen: Frozen | None = None, record: bool = True) -> None:
        """Carry out every line on `values`, which has all targets already.

        The values of `stop_gradient(x)` are recorded in `frozen`, or with `record=False` are those:
        the same equations are run again, at another point.
        """
        run = _Run(values, self.sizes, self.t, {} if frozen is None else frozen, record)
        for equation in self.equations:
            equation.carry_out(run)


@dataclass
class _Run:
    values: Values
    sizes: Mapping[str, int]
    t: int
    frozen: Frozen
    record: bool


class _Equation:
    """`names` are the words on the right side, functions and `letters`, those of indices, too."""

    def __init__(self, line: str) -> None:
        self.ranges = dict(re.findall(r" \((\w) < ([^()]+)\)", line))
        line = re.sub(r" \(\w < [^()]+\)", "", line)
        left, sign, right = re.split(r" (\+?=) ", line, maxsplit=1)
        self.target, self.places = _access(left)
        self.adds = sign == "+="
        self.terms = [_Term(negative, text) for negative, text in _terms(right)]
        words = (re.findall(r"(?<![\w.])[A-Za-z_]\w*", term.text) for term in self.terms)
        self.names = {word for found in words for word in found}
        places = [*self.places, *(p for t in self.terms for _, at in t.accesses for p in at)]
        found = set(re.findall(r"\b[a-z]\b", ",".join(places)))
        self.letters = found | {letter for term in self.terms for letter in term.over}

    def carry_out(self, run: _Run) -> None:
        array = run.values[self.target]
        letters = sorted(set(re.findall(r"\b[a-z]\b", ",".join(self.places))) - run.sizes.keys())
        accesses = [(self.target, self.places), *(a for t in self.terms for a in t.accesses)]
        for point in _points(letters, accesses, run, self.ranges):
            place = tuple(int(eval(text, {**run.sizes, **point})) for text in self.places)
            place = tuple(n % size for n, size in zip(place, array.shape, strict=True))
            found = sum(term.value(point, run, self.ranges) for term in self.terms)
            array[place] = exact.mpf(found + (array[place] if self.adds else 0))


class _Term:
    def __init__(self, negative: bool, text: str) -> None:
        self.negative = negative
        found = re.match(r"(sum|max|min)_([a-z]+) ", text)
        self.fold, self.over = (found[1], list(found[2])) if found else (None, [])
        self.text = text[found.end() :] if found else text
        self.accesses = list(_accesses(self.text))
        numbered = itertools.count()
        text = re.sub(
            r"\bstop_gradient\(", lambda _: f"stop_gradient({next(numbered)}, ", _python(self.text)
        )
        self.code = compile(_lazy(text), "<term>", "eval")

    def value(self, point: Mapping[str, int], run: _Run, ranges: Mapping[str, str]) -> Number:
        if self.fold is None:
            found = self._at(point, run)
        else:
            inner = _points(self.over, self.accesses, run, ranges)
            found = FOLDS[self.fold](self._at({**point, **more}, run) for more in inner)
        return -found if self.negative else found

    def _at(self, point: Mapping[str, int], run: _Run) -> Number:
        def stop_gradient(place: int, x: Number) -> Number:
            key = (self.text, place, *sorted(point.items()))
            if run.record:
                run.frozen[key] = x
            return run.frozen[key]

        scope = _Scope(run.values, {**run.sizes, **point, "t": run.t})
        scope |= {"stop_gradient": stop_gradient}
        return eval(self.code, scope)


class _Scope(dict[str, Any]):
    """Names of a formula: letters and sizes, functions, arrays; an array of rank 0 is a number."""

    def __init__(self, values: Values, numbers: Mapping[str, int]) -> None:
        super().__init__({**FUNCTIONS, "select": _select, **numbers})
        self.arrays = values

    def __missing__(self, name: str) -> Any:
        array = self.arrays[name]
        return array.item() if array.ndim == 0 else array


def _select(condition: bool, taken: Callable[[], Number], other: Callable[[], Number]) -> Number:
    return taken() if condition else other()


def _lazy(text: str) -> str:
    """`select(c, a, b)` with its branches unevaluated."""
    start = text.find("select(")
    if start < 0:
        return text
    opening = start + len("select(")
    depth, cuts, n = 1, [], opening
    while depth:
        depth += (text[n] in "([") - (text[n] in ")]")
        if depth == 1 and text[n] == ",":
            cuts.append(n)
        n += 1
    parts = [text[a + 1 : b] for a, b in itertools.pairwise([opening - 1, *cuts, n - 1])]
    condition, taken, other = map(_lazy, parts)
    inner = f"SELECT({condition}, lambda: {taken}, lambda: {other})"
    return (text[:start] + inner + _lazy(text[n:])).replace("SELECT", "select")


def _python(text: str) -> str:
    """`(i - 1) mod 2*K` as Python has it."""
    return re.sub(r" mod ([^,\]]+)", r" % (\1)", text)


def _access(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, rest = text.partition("[")
    return name, tuple(_python(p.strip()) for p in rest[:-1].split(",")) if rest else ()


def _accesses(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, places in re.findall(r"([A-Za-z_]\w*)\[([^\[\]]*)\]", text):
        yield name, tuple(_python(p.strip()) for p in places.split(","))


def _terms(text: str) -> Iterator[tuple[bool, str]]:
    """The summands of a right side, with their signs."""
    depth, start, negative = 0, 0, False
    if text.startswith("-"):
        negative, start = True, 1
    for n, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth == 0 and text[n : n + 3] in (" + ", " - "):
            yield negative, text[start:n]
            negative, start = text[n + 1] == "-", n + 3
    yield negative, text[start:]


def _points(
    letters: list[str],
    accesses: list[tuple[str, tuple[str, ...]]],
    run: _Run,
    stated: Mapping[str, str],
) -> Iterator[dict[str, int]]:
    """All values of letters: how far one runs is stated, or read off an axis that it indexes alone.

    Of several such axes the shortest counts: `kf[i] = x[i]` fills a part of kf where x is shorter.
    """
    ranges = []
    for letter in letters:
        axes = [run.values[n].shape[p.index(letter)] for n, p in accesses if letter in p]
        size = int(eval(stated[letter], dict(run.sizes))) if letter in stated else min(axes)
        ranges.append(range(size))
    for point in itertools.product(*ranges):
        yield dict(zip(letters, point, strict=True))
