"""Regular and counter languages, modular arithmetic, words over groups; `LANGUAGES` has them all.

Where a language has members, the question at each symbol is what a recogniser knows there: whether
the string so far is a member, or which symbols can follow.
"""

from __future__ import annotations

import random
from functools import partial
from itertools import accumulate, permutations

from . import programs
from .language import Language, Setup, Word

BINARY = ("0", "1")
MODULUS = 5


# --- parity, (aa)*, (abab)*


def _parity(rng: random.Random, sizes: range) -> Word | None:
    """Both symbols are equally frequent, and sizes geometric about the middle of the window."""
    middle = (sizes[0] + sizes[-1]) / 2
    word: list[str] = []
    while rng.random() < middle / (1 + middle):
        word.append(rng.choice(BINARY))
        if len(word) > sizes[-1]:
            return None
    if word.count("1") % 2:
        word.append("1")
    return tuple(word) if len(word) in sizes else None


def _label_parity(word: Word) -> list[str]:
    ones = accumulate(symbol == "1" for symbol in word)
    return [str(int(count % 2 == 0)) for count in ones]


def _repeat(pattern: str, rng: random.Random, sizes: range) -> Word:
    return tuple(pattern) * (rng.choice(sizes) // len(pattern))


def _label_repeat(period: int, word: Word) -> list[str]:
    return [str(int(t % period == 0)) for t in range(1, len(word) + 1)]


# --- a^n b^n, a^n b^n c^n


def _blocks(letters: str, rng: random.Random, sizes: range) -> Word:
    n = rng.choice(sizes)
    return tuple(letter for letter in letters for _ in range(n))


def _label_blocks(word: Word) -> list[str]:
    """What can follow: while the first letter is read, one more of it or the second."""
    first, n = word[0], word.count(word[0])
    return [f"{first}/b"] * n + [*word[n + 1 :], "end"]


# --- Dyck-1, its shuffle and its reset


def _dyck(rng: random.Random, most: int) -> Word | None:
    """S -> ( S ) with probability 1/2, S S with 1/4, else nothing; None if longer than `most`."""
    word: list[str] = []
    pending, closing = ["S"], 0
    while pending:
        item = pending.pop()
        if item != "S":
            word.append(item)
            closing -= item == ")"
            continue
        choice = rng.random()
        if choice < 0.5:
            pending += [")", "S", "("]
            closing += 1
        elif choice < 0.75:
            pending += ["S", "S"]
        if len(word) + closing > most:
            return None
    return tuple(word)


def _dyck_in(rng: random.Random, sizes: range) -> Word | None:
    word = _dyck(rng, sizes[-1])
    return word if word is not None and len(word) in sizes else None


def _shuffle(rng: random.Random, sizes: range) -> Word | None:
    """Two Dyck words, one in square brackets, interleaved in any way with equal probability."""
    round_, square = _dyck(rng, sizes[-1]), _dyck(rng, sizes[-1])
    if round_ is None or square is None or len(round_) + len(square) not in sizes:
        return None
    total = len(round_) + len(square)
    places = set(rng.sample(range(total), len(round_)))
    rest, one = iter("[" if s == "(" else "]" for s in square), iter(round_)
    return tuple(next(one if t in places else rest) for t in range(total))


def _reset(rng: random.Random, sizes: range) -> Word | None:
    """A Dyck word that is cut anywhere, the reset, a whole Dyck word."""
    # A start that leaves all its brackets open is half of the shortest word that begins so.
    before, after = _dyck(rng, 2 * sizes[-1]), _dyck(rng, sizes[-1])
    if before is None or after is None:
        return None
    word = (*before[: rng.randint(0, len(before))], "1", *after)
    return word if len(word) in sizes else None


def _label_brackets(pairs: str, word: Word) -> list[str]:
    """For each pair of brackets whether one is open; "1" closes all."""
    labels, open_ = [], [0] * (len(pairs) // 2)
    for symbol in word:
        if symbol == "1":
            open_ = [0] * len(open_)
        else:
            place = pairs.index(symbol)
            open_[place // 2] += 1 - 2 * (place % 2)
        labels.append("".join(str(int(count > 0)) for count in open_))
    return labels


# --- modular arithmetic, groups


def _arithmetic(rng: random.Random, sizes: range) -> Word:
    numbers = [str(i) for i in range(MODULUS)]
    kinds = (numbers, "+-*")
    return tuple(rng.choice(kinds[t % 2]) for t in range(rng.choice(sizes)))


def _label_arithmetic(word: Word) -> list[str | None]:
    """At each number the value of the expression so far, products first; nothing at operators."""
    labels: list[str | None] = []
    total, product, operator = 0, 0, "+"
    for t, symbol in enumerate(word):
        if t % 2:
            operator = symbol
            labels.append(None)
            continue
        number = int(symbol)
        if operator == "*":
            product = product * number % MODULUS
        else:
            total, product = total + product, number if operator == "+" else -number
        labels.append(str((total + product) % MODULUS))
    return labels


def _elements(degree: int) -> tuple[str, ...]:
    """Permutations as strings: g maps i to g[i]. The first is the identity."""
    return tuple("".join(p) for p in permutations("01234"[:degree]))


def _any_word(alphabet: tuple[str, ...], rng: random.Random, sizes: range) -> Word:
    return tuple(rng.choices(alphabet, k=rng.choice(sizes)))


def _label_product(word: Word) -> list[str]:
    """The product of what was read: (p g)(i) = p(g(i))."""
    return list(accumulate(word, lambda p, g: "".join(p[int(i)] for i in g)))


# --- all of them


def _brackets(name: str, about: str, pairs: str, draw: programs.Draw, least: int) -> Language:
    kinds = pairs.replace("1", "")
    bits = _bits(len(kinds) // 2)
    return Language(
        name,
        about,
        tuple(pairs),
        bits,
        draw,
        partial(_label_brackets, kinds),
        Setup((2, 20), ((21, 40),)),
        Setup((2, 50), ((51, 100),), 10_000),
        first=least,
        step=least,
    )


def _bits(count: int) -> tuple[str, ...]:
    return BINARY if count == 1 else ("00", "01", "10", "11")


def _repeated(name: str, pattern: str, full: Setup) -> Language:
    size = len(pattern)
    return Language(
        name,
        f"({pattern})*: is the string so far a member?",
        tuple(sorted(set(pattern))),
        BINARY,
        partial(_repeat, pattern),
        partial(_label_repeat, size),
        Setup((size, 24), ((25, 48),)),
        full,
        first=size,
        step=size,
        single=True,
    )


def _counted(name: str, letters: str) -> Language:
    return Language(
        name,
        " ".join(f"{letter}^n" for letter in letters) + ": what can follow?",
        tuple(letters),
        ("a/b", *letters[1:], "end"),
        partial(_blocks, letters),
        _label_blocks,
        Setup((1, 12), ((13, 24),)),
        Setup((1, 50), ((51, 100),), 10_000),
        unit="letters of each kind",
        single=True,
    )


def _group(degree: int) -> Language:
    elements = _elements(degree)
    return Language(
        f"s{degree}",
        f"the product of permutations of {degree}",
        elements,
        elements,
        partial(_any_word, elements),
        _label_product,
        Setup((2, 20), ((21, 40),)),
        Setup((2, 50), ((51, 100),)),
    )


ALL = [
    Language(
        "parity",
        "an even number of ones so far?",
        BINARY,
        BINARY,
        _parity,
        _label_parity,
        Setup((2, 20), ((21, 40),)),
        Setup((2, 50), ((51, 100),), 10_000),
    ),
    _repeated("aa", "aa", Setup((2, 500), ((501, 600),), 250)),
    _repeated("abab", "abab", Setup((4, 500), ((501, 600),), 125)),
    _counted("anbn", "ab"),
    _counted("anbncn", "abc"),
    _brackets("dyck1", "balanced brackets: is one open?", "()", _dyck_in, 2),
    _brackets(
        "shuffle2", "two kinds of brackets, each balanced: is one open?", "()[]", _shuffle, 2
    ),
    _brackets("reset-dyck1", "brackets, and a 1 that closes all: is one open?", "()1", _reset, 1),
    Language(
        "modular",
        f"sums, differences and products modulo {MODULUS}: the value so far",
        (*map(str, range(MODULUS)), "+", "-", "*"),
        tuple(map(str, range(MODULUS))),
        _arithmetic,
        _label_arithmetic,
        Setup((3, 19), ((21, 39),)),
        Setup((3, 40), ((41, 256),)),
        step=2,
    ),
    _group(3),
    _group(5),
    *(programs.code(variables) for variables in (2, 3, 5)),
    programs.listops(),
]
LANGUAGES: dict[str, Language] = {language.name: language for language in ALL}
