"""Number words, English to German: a translation task without data, with true reordering.

one hundred twenty-three -> einhundertdreiundzwanzig
"""

from __future__ import annotations

import random

WORDS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen; twenty thirty forty fifty sixty seventy eighty ninety;
null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn
sechzehn siebzehn achtzehn neunzehn; zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig
"""
ENGLISH, ENGLISH_TENS, GERMAN, GERMAN_TENS = (group.split() for group in WORDS.split(";"))
SIZES = {"train": 20_000, "valid": 500, "test": 500}


def english(n: int) -> str:
    """The words of 0 <= n < 1,000,000."""
    if n >= 1000:
        rest = f" {english(n % 1000)}" if n % 1000 else ""
        return f"{english(n // 1000)} thousand{rest}"
    if n >= 100:
        rest = f" {english(n % 100)}" if n % 100 else ""
        return f"{ENGLISH[n // 100]} hundred{rest}"
    if n >= 20:
        return ENGLISH_TENS[n // 10 - 2] + (f"-{ENGLISH[n % 10]}" if n % 10 else "")
    return ENGLISH[n]


def german(n: int) -> str:
    """The word of 0 <= n < 1,000,000: units stand before tens, `eins` loses its s in the middle."""
    if n >= 1000:
        return _inside(n // 1000) + "tausend" + (german(n % 1000) if n % 1000 else "")
    if n >= 100:
        return _inside(n // 100) + "hundert" + (german(n % 100) if n % 100 else "")
    if n >= 20:
        tens = GERMAN_TENS[n // 10 - 2]
        return f"{_inside(n % 10)}und{tens}" if n % 10 else tens
    return GERMAN[n]


def _inside(n: int) -> str:
    """The word of n when something follows it."""
    word = german(n)
    return word.removesuffix("s") if n % 100 == 1 else word


def pairs(split: str) -> tuple[list[str], list[str]]:
    """English and German lines of a split: always the same, no number in two splits.

    Numbers of one to six digits are equally frequent as far as there are enough of them.
    """
    drawn: dict[int, None] = {}  # in the order of drawing
    source = random.Random(2021)
    while len(drawn) < sum(SIZES.values()):
        drawn[source.randrange(10 ** source.randint(1, 6))] = None
    order = list(drawn)
    source.shuffle(order)
    start = 0
    for name, size in SIZES.items():
        if name == split:
            break
        start += size
    numbers = order[start : start + SIZES[split]]
    return [english(n) for n in numbers], [german(n) for n in numbers]
