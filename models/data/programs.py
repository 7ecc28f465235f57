"""Programs that are executed while they are read, and nested list operations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from .language import Language, Setup, Word

Draw = Callable[[random.Random, range], Word | None]
LEAST, MOST = -8, 16  # of a variable
NOTHING = "_"  # the class of a symbol at which nothing is printed
STATEMENTS = ("assign", "step", "print")
OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[FIRST": lambda values: values[0],
}


# --- code execution


def code(variables: int) -> Language:
    """x = 3 ; y = 0 ; x ++ ; if x > 2 : print x ; with values as classes at the end of prints."""
    names = tuple("xyzuv"[:variables])
    digits = tuple(str(i) for i in range(10))
    return Language(
        f"code-{variables}",
        f"programs of {variables} variables: what is printed at each symbol?",
        (*names, *digits, "=", "++", "--", ";", "print", "if", "<", ">", ":"),
        (NOTHING, *(str(value) for value in range(LEAST, MOST + 1))),
        partial(_program, names),
        _label_program,
        Setup((20, 20), ((40, 40),), 2000),
        Setup((100, 100), ((200, 200),), 10_000),
        unit="statements",
        first=2,
    )


def _program(names: tuple[str, ...], rng: random.Random, sizes: range) -> Word:
    """An assignment first, a print last, any statement between.

    A statement under a condition is part of it. Only variables that have a value are read.
    """
    values: dict[str, int] = {}
    count = rng.choice(sizes)
    kinds = ["assign", *rng.choices((*STATEMENTS, "if"), k=count - 2), "print"]
    program: list[str] = []
    for kind in kinds:
        statement: list[str] = []
        if kind == "if":
            relation, bound = rng.choice("<>"), str(rng.randrange(10))
            statement = ["if", rng.choice([*values]), relation, bound, ":"]
            kind = rng.choice(STATEMENTS)
        statement += _statement(kind, names, values, rng)
        _execute(statement, values)
        program += statement
    return tuple(program)


def _statement(
    kind: str, names: tuple[str, ...], values: dict[str, int], rng: random.Random
) -> list[str]:
    if kind == "assign":
        return [rng.choice(names), "=", str(rng.randrange(10)), ";"]
    name = rng.choice([*values])
    if kind == "print":
        return ["print", name, ";"]
    up = rng.random() < 0.5
    if values[name] == (MOST if up else LEAST):
        up = not up
    return [name, "++" if up else "--", ";"]


def _execute(statement: Sequence[str], values: dict[str, int]) -> str:
    """Change the values; returns what is printed."""
    first, second = statement[:2]
    if first == "if":
        value, bound = values[second], int(statement[3])
        holds = value < bound if statement[2] == "<" else value > bound
        return _execute(statement[5:], values) if holds else NOTHING
    if first == "print":
        return str(values[second])
    if second == "=":
        values[first] = int(statement[2])
    else:
        values[first] += 1 if second == "++" else -1
    return NOTHING


def _label_program(word: Word) -> list[str]:
    """At the end of a print that is executed the value, elsewhere that there is nothing."""
    labels: list[str] = []
    values: dict[str, int] = {}
    start = 0
    for end, symbol in enumerate(word):
        if symbol == ";":
            printed = _execute(word[start : end + 1], values)
            labels += [NOTHING] * (end - start) + [printed]
            start = end + 1
    return labels


# --- nested lists


def listops() -> Language:
    """[MAX 2 [MIN 4 7 ] 0 ]: one question, at the last symbol."""
    digits = tuple(str(i) for i in range(10))
    return Language(
        "listops",
        "nested MIN, MAX and FIRST: the value at the end",
        (*digits, *OPERATORS, "]"),
        digits,
        _expression_in,
        _label_expression,
        Setup((4, 5), ((6, 7),), 5000),
        Setup((10, 10), ((15, 15),), 10_000),
        unit="levels",
    )


def _expression_in(rng: random.Random, sizes: range) -> Word | None:
    word, depth = _expression(rng, sizes[-1])
    return tuple(word) if depth in sizes else None


def _expression(rng: random.Random, most: int) -> tuple[list[str], int]:
    """Symbols and depth. Two to five arguments; each is an operator with probability 1/4."""
    word, depth = [rng.choice([*OPERATORS])], 1
    for _ in range(rng.randint(2, 5)):
        if most > 1 and rng.random() < 0.25:
            inner, below = _expression(rng, most - 1)
            word += inner
            depth = max(depth, 1 + below)
        else:
            word.append(str(rng.randrange(10)))
    return [*word, "]"], depth


def _label_expression(word: Word) -> list[str | None]:
    stack: list[tuple[str, list[int]]] = []
    value = 0
    for symbol in word:
        if symbol in OPERATORS:
            stack.append((symbol, []))
            continue
        if symbol == "]":
            operator, values = stack.pop()
            value = OPERATORS[operator](values)
        else:
            value = int(symbol)
        if stack:
            stack[-1][1].append(value)
    return [None] * (len(word) - 1) + [str(value)]
