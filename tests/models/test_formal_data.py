"""Formal languages: strings and answers against definitions that are written another way."""

import random
from collections import Counter
from functools import reduce
from itertools import permutations, product

import pytest

import fwgen
from fwgen.models.data.formal import LANGUAGES
from fwgen.models.data.language import IGNORED

# --- members, by definition


def balanced(text, pair="()"):
    kept = "".join(s for s in text if s in pair)
    while pair in kept:
        kept = kept.replace(pair, "")
    return not kept


def opened(text):
    """Is the text the start of a balanced one?"""
    return all(text[:i].count(")") <= text[:i].count("(") for i in range(len(text) + 1))


def counted(text, letters):
    n = len(text) // len(letters)
    return n > 0 and text == "".join(letter * n for letter in letters)


MEMBERS = {
    "parity": lambda s: s.count("1") % 2 == 0,
    "aa": lambda s: len(s) % 2 == 0,
    "abab": lambda s: s == "abab" * (len(s) // 4),
    "anbn": lambda s: counted(s, "ab"),
    "anbncn": lambda s: counted(s, "abc"),
    "dyck1": balanced,
    "shuffle2": lambda s: balanced(s) and balanced(s, "[]"),
    "reset-dyck1": lambda s: (
        s.count("1") == 1 and opened(s.split("1")[0]) and balanced(s.split("1")[1])
    ),
}
LONGEST = {"parity": 6, "aa": 12, "abab": 12, "anbn": 12, "anbncn": 9}  # others 6


def strings(language, longest):
    for n in range(1, longest + 1):
        yield from map("".join, product(language.alphabet, repeat=n))


def members(name, longest=None):
    """All members up to a length, by trying every string."""
    language = LANGUAGES[name]
    longest = longest or LONGEST.get(name, 6)
    return {s for s in strings(language, longest) if MEMBERS[name](s)}


@pytest.mark.parametrize("name", MEMBERS)
def test_exactly_the_members_are_drawn(name, monkeypatch):
    monkeypatch.setattr("fwgen.models.data.language.MISSES", 10_000)
    language = LANGUAGES[name]
    expected = members(name)
    # Sizes of the counted languages are repetitions of each letter.
    longest = LONGEST.get(name, 6) // (len(language.alphabet) if name.startswith("an") else 1)
    found = language.distinct(random.Random(0), (1, longest), 10_000)
    assert {"".join(word) for word in found} == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("name", ["parity", "aa", "abab"])
def test_the_answer_is_whether_the_string_so_far_is_a_member(name):
    language = LANGUAGES[name]
    for word in language.distinct(random.Random(1), (1, 24), 200):
        starts = ["".join(word[:t]) for t in range(1, len(word) + 1)]
        assert list(language.label(word)) == [str(int(MEMBERS[name](s))) for s in starts]


@pytest.mark.parametrize("name", ["anbn", "anbncn"])
def test_the_answer_is_what_can_follow(name):
    everything = members(name)
    language = LANGUAGES[name]
    names = {frozenset("ab"): "a/b", frozenset("b"): "b", frozenset("c"): "c", frozenset(): "end"}
    # Of the longest member's letters the last ones seem to be forced: look at shorter ones.
    for text in [s for s in everything if 2 * len(s) <= max(map(len, everything))]:
        expected = []
        for t in range(1, len(text) + 1):
            follow = {s[t] for s in everything if s.startswith(text[:t]) and len(s) > t}
            expected.append(names[frozenset(follow)])
        assert list(language.label(tuple(text))) == expected


@pytest.mark.parametrize("name, ends", [("dyck1", ")"), ("shuffle2", ")]"), ("reset-dyck1", ")")])
def test_the_answer_is_which_brackets_can_be_closed(name, ends):
    everything = members(name, 8 if name == "reset-dyck1" else 6)
    starts = {s[:t] for s in everything for t in range(1, len(s) + 1)}
    language = LANGUAGES[name]
    for text in [s for s in everything if len(s) <= 6]:  # the rest shows how these could go on
        expected = []
        for t in range(1, len(text) + 1):
            expected.append("".join(str(int(text[:t] + end in starts)) for end in ends))
        assert list(language.label(tuple(text))) == expected


def test_modular_arithmetic_is_that_of_python():
    language = LANGUAGES["modular"]
    words = list(product(*[language.alphabet[:5], "+-*"] * 2, language.alphabet[:5]))
    words += language.distinct(random.Random(0), (7, 31), 100)
    for word in words:
        labels = language.label(word)
        assert len(labels) == len(word)
        for t in range(len(word)):
            value = None if t % 2 else str(eval("".join(word[: t + 1])) % 5)
            assert labels[t] == value


@pytest.mark.parametrize("degree", [3, 5])
def test_products_of_permutations_are_compositions(degree):
    language = LANGUAGES[f"s{degree}"]
    assert len(language.alphabet) == len(set(permutations(range(degree))))
    for word in language.distinct(random.Random(0), (1, 9), 50):
        maps = [dict(enumerate(map(int, g))) for g in word]
        for t, label in enumerate(language.label(word)):
            whole = {
                i: reduce(lambda x, g: g[x], reversed(maps[: t + 1]), i) for i in range(degree)
            }
            assert dict(enumerate(map(int, label))) == whole
    assert language.classes == language.alphabet
    # The last element of a group's product is uniform: no class is a good guess.
    words = [language.sample(random.Random(i), (5, 5)) for i in range(600)]
    last = Counter(language.label(word)[-1] for word in words)
    assert max(last.values()) < 3 * 600 / len(language.alphabet) + 12


# --- programs


def as_python(statement, log):
    """One statement of a program as Python."""
    if statement[0] == "if":
        return f"if {' '.join(statement[1:4])}: " + as_python(statement[5:], log)
    if statement[0] == "print":
        return f"{log}.append({statement[1]})"
    if statement[1] == "=":
        return f"{statement[0]} = {statement[2]}"
    return f"{statement[0]} {statement[1][0]}= 1"


def split(word):
    found, start = [], 0
    for i, symbol in enumerate(word):
        if symbol == ";":
            found.append(word[start:i])
            start = i + 1
    return found


@pytest.mark.parametrize("variables", [2, 3, 5])
def test_programs_print_what_python_prints(variables):
    language = LANGUAGES[f"code-{variables}"]
    names = language.alphabet[:variables]
    kinds, values = Counter(), set()
    for word in language.distinct(random.Random(0), (100, 100), 60):
        space, expected = {}, []
        statements = split(word)
        assert len(statements) == 100 and word[-1] == ";"
        assert statements[0][1] == "=" and statements[-1][0] == "print"
        for statement in statements:
            log = []
            exec(as_python(statement, "log"), {"log": log}, space)  # a NameError: not assigned
            expected += ["_"] * len(statement) + [str(log[0]) if log else "_"]
            values |= set(space.values())
        assert set(space) <= set(names)
        assert list(language.label(word)) == expected
        kinds.update(s[0] if s[0] in ("if", "print") else s[1] for s in statements[1:-1])
    assert min(values) >= -8 and max(values) <= 16
    # 5880 statements of four kinds, 1470 each on average: five standard deviations are 166.
    steps = kinds.pop("++") + kinds.pop("--")
    assert set(kinds) == {"if", "print", "="}
    assert all(abs(count - 1470) < 166 for count in (steps, *kinds.values()))


def test_a_step_that_would_leave_the_range_goes_the_other_way(monkeypatch):
    """In a range that assignments fill, so that programs are at its ends all the time."""

    def seen():
        language = LANGUAGES["code-2"]
        words = [language.sample(random.Random(seed), (100, 100)) for seed in range(20)]
        return {int(label) for word in words for label in language.label(word) if label != "_"}

    assert {-1, 10} <= seen()
    monkeypatch.setattr("fwgen.models.data.programs.LEAST", 0)
    monkeypatch.setattr("fwgen.models.data.programs.MOST", 9)
    assert seen() == set(range(10))


def test_a_print_under_a_false_condition_prints_nothing():
    program = "x = 3 ; if x > 3 : print x ; if x < 4 : x ++ ; print x ;"
    word = tuple(program.split())
    labels = LANGUAGES["code-2"].label(word)
    assert [label for label in labels if label != "_"] == ["4"] and labels[-1] == "4"


# --- lists


def as_expression(word):
    calls = {"[MIN": "min([", "[MAX": "max([", "[FIRST": "first([", "]": "]),"}
    return "".join(calls.get(s, s + ",") for s in word).rstrip(",")


def test_lists_have_the_value_and_depth_that_python_finds():
    language = LANGUAGES["listops"]
    functions = {"min": min, "max": max, "first": lambda values: values[0]}
    operators = arguments = deep = 0
    for word in language.distinct(random.Random(0), (1, 6), 500):
        labels = language.label(word)
        assert labels[:-1] == [None] * (len(word) - 1)
        assert labels[-1] == str(eval(as_expression(word), functions))
        level, depths, counts = 0, [], [0]
        for symbol in word:
            counts[-1] += symbol != "]"
            if symbol.startswith("["):
                level += 1
                counts.append(0)
            depths.append(level)
            if symbol == "]":
                level -= 1
                assert 2 <= counts.pop() <= 5
        assert 1 <= max(depths) <= 6
        deep = max(deep, max(depths))
        operators += sum(s.startswith("[") for s in word) - 1
        arguments += sum(s != "]" for s in word) - 1
    assert deep == 6
    assert 0.15 < operators / arguments < 0.3
    only = [language.sample(random.Random(i), (3, 3)) for i in range(20)]
    assert all(depth(word) == 3 for word in only)


def depth(word):
    level, most = 0, 0
    for symbol in word:
        level += symbol.startswith("[") - (symbol == "]")
        most = max(most, level)
    return most


# --- all languages


def size(name, word):
    if name.startswith("an"):
        return word.count("a")
    if name.startswith("code"):
        return word.count(";")
    return depth(word) if name == "listops" else len(word)


@pytest.mark.parametrize("name", LANGUAGES)
def test_every_window_has_only_its_sizes(name):
    language = LANGUAGES[name]
    for setup in (language.small, language.full):
        for low, high in (setup.lengths, *setup.longer):
            count = 40 if setup is language.small else 5
            words = language.distinct(random.Random(0), (low, high), count)
            assert words and len(set(words)) == len(words)
            assert all(low <= size(name, word) <= high for word in words)
        assert all(low > setup.lengths[1] for low, _ in setup.longer)


@pytest.mark.parametrize("name", LANGUAGES)
def test_numbers_stand_for_symbols_and_classes(name):
    language = LANGUAGES[name]
    words = language.distinct(random.Random(0), language.small.lengths, 20)
    symbols, targets = language.encode(words)
    assert symbols.shape == targets.shape == (len(words), max(map(len, words)))
    for row, word in enumerate(words):
        n = len(word)
        assert [language.alphabet[i] for i in symbols[row, :n]] == list(word)
        found = [None if i == IGNORED else language.classes[i] for i in targets[row, :n].tolist()]
        assert found == list(language.label(word))
        assert (targets[row, n:] == IGNORED).all() and (symbols[row, n:] == 0).all()
    assert len(set(language.alphabet)) == len(language.alphabet)
    assert len(set(language.classes)) == len(language.classes)


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_seed_is_a_sequence_of_strings(name):
    language = LANGUAGES[name]

    def drawn(seed):
        rng = random.Random(seed)
        return [language.sample(rng, language.small.lengths) for _ in range(20)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_strings_that_are_left_out():
    language = LANGUAGES["parity"]
    few = language.distinct(random.Random(0), (1, 4), 5)
    rest = language.distinct(random.Random(1), (1, 4), 100, few)
    assert not set(few) & set(rest)
    assert len(few) + len(rest) == 1 + 2 + 4 + 8


@pytest.mark.parametrize(
    "name, window, said",
    [
        ("abab", (5, 7), "holds a size of abab"),
        ("dyck1", (3, 3), "holds a size of dyck1"),
        ("parity", (0, 4), "got 0-4"),
        ("parity", (9, 4), "got 9-4"),
        ("code-2", (1, 1), "in statements"),
    ],
)
def test_a_window_without_strings_is_refused(name, window, said):
    with pytest.raises(fwgen.ArgumentError, match=said):
        LANGUAGES[name].sample(random.Random(0), window)


def test_a_window_out_of_reach_is_refused(monkeypatch):
    monkeypatch.setattr("fwgen.models.data.language.TRIES", 50)
    with pytest.raises(fwgen.ArgumentError, match="a wider window helps"):
        LANGUAGES["dyck1"].sample(random.Random(0), (5000, 5000))
