"""Rule files spoilt at random: by characters, tokens, lines and sections, and mixed with others.

`FWGEN_FUZZ_RULES` names a folder of further rule files to start from.
"""

import os
import random
import re
from collections.abc import Callable
from pathlib import Path

from faulty import SOUND

from fwgen.language.shipped import FEATURES, RULES

MOST = 64 * 1024
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?(?:e-?\d+)?|\*\*|->|[<>=!]=|\s+|.", re.DOTALL)
NUMBERS_TEXT = (
    "0 1 -1 2 3 7 16 64 100 4095 4096 4097 65536 2147483647 2147483648 9007199254740993 "
    "9999999999999999999999 0.5 1e-6 1e-400 1e38 1e308 1e309 1e999999999 0x10 0b1 1_000 1j 00 "
    "inf nan 1.7976931348623157e308 -0.0"
)
STRANGE_TEXT = (
    "\u00b2 \uff21 \uff11 \u0391 \u0430 \u2028 \u200b \u202e \ufeff \u00ad \u0301 \U0001d54e \x00 "
    "\x1b \x7f \x85 \xa0 \r \t \\ \" ' ` # & * ! | > % @ { } [] () , : ; ? - = . .. ..."
)
WORDS_TEXT = (
    "exp log log1p expm1 sqrt rsqrt abs sign sin cos tanh sigmoid logsigmoid softplus relu elu "
    "silu gelu square maximum minimum clamp where stop_gradient sum mean max min norm softmax "
    "l2norm sum_normalize layernorm rmsnorm concat roll stack flatten outer dot diag eye size "
    "einsum prev row col t range for in not and or if else lambda import None True scalar param "
    "init dims name doc constants inputs params buffers state feature_map update output dpfp elu1 "
    "favor_positive identity relu1 hedgehog axis eps nu W q k v beta g K V F T i j "
)
SHAPES_TEXT = (
    "{0} + {0}|{0} * {0}|({0})|-({0})|{0} ** 2|{0} ** -1|{0} ** 0.5|{0}.T|{0}[0]|{0}[1:]|{0}[-1]|"
    "{0}[0, 1]|exp({0})|sum({0})|sum({0}, axis=0)|softmax({0}, axis=-1)|outer({0}, {0})|row({0})|"
    "col({0})|diag({0})|where({0} > 0, {0}, 0)|where(t % 3 > 0, {0}, {0})|concat({0}, {0})|"
    "concat({0} * i for i in range(3))|stack({0}, {0})|flatten(outer({0}, {0}))|roll({0}, 1)|"
    "prev({0})|stop_gradient({0})|maximum({0}, 0)|norm({0})|{0} @ {0}|dot({0}, {0})|{0} / {0}|"
    'eye(size({0}))|einsum("i,j->ij", {0}, {0})|clamp({0}, -1, 1)|layernorm({0})'
)
NUMBERS, WORDS, STRANGE = NUMBERS_TEXT.split(), WORDS_TEXT.split(), STRANGE_TEXT.split(" ")
SHAPES = SHAPES_TEXT.split("|")


def corpus() -> list[str]:
    """Rules and feature maps that are sound, as their files have them."""
    folders = [RULES, FEATURES]
    if more := os.environ.get("FWGEN_FUZZ_RULES"):
        folders.append(Path(more))
    paths = [path for folder in folders for path in sorted(folder.glob("*.yaml"))]
    return [SOUND, *(path.read_text(encoding="utf-8") for path in paths)]


class Spoiler:
    """Makes one text after the other, each a function of the seed and of its number."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.texts = corpus()
        self.ways: list[Callable[[random.Random, str], str]] = [
            *(_characters, _characters, _tokens, _tokens, _tokens, _shape, _shape, _number),
            *(_lines, _lines, _indent, _repeat, self._line_of_another, self._section_of_another),
            *(self._token_of_another, self._token_of_another),
        ]

    def text(self, number: int) -> str:
        """The text of that number."""
        draw = random.Random(f"{self.seed}-{number}")
        text = draw.choice(self.texts)
        for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5, 9))):
            text = draw.choice(self.ways)(draw, text)
        return text[:MOST]

    def _line_of_another(self, draw: random.Random, text: str) -> str:
        lines, others = text.split("\n"), draw.choice(self.texts).split("\n")
        place = draw.randrange(len(lines))
        start = draw.randrange(len(others))
        lines[place : place + draw.randrange(2)] = others[start : start + draw.randint(1, 3)]
        return "\n".join(lines)

    def _section_of_another(self, draw: random.Random, text: str) -> str:
        mine, theirs = _sections(text), _sections(draw.choice(self.texts))
        name = draw.choice(sorted({*mine, *theirs}))
        if name in theirs:
            mine[name] = theirs[name]
        return "".join(mine.values())

    def _token_of_another(self, draw: random.Random, text: str) -> str:
        tokens, others = TOKEN.findall(text), TOKEN.findall(draw.choice(self.texts))
        if not tokens or not others:
            return text
        start = draw.randrange(len(others))
        place = draw.randrange(len(tokens))
        end = place + draw.choice((0, 1, 1, 3))
        tokens[place:end] = others[start : start + draw.choice((1, 1, 2, 8))]
        return "".join(tokens)


def _sections(text: str) -> dict[str, str]:
    parts = re.split(r"(?m)^(?=\w+:)", text)
    return {part.partition(":")[0]: part for part in parts}


def _characters(draw: random.Random, text: str) -> str:
    start = draw.randint(0, len(text))
    end = min(len(text), start + draw.choice((0, 0, 1, 1, 2, 10)))
    new = draw.choice(("", draw.choice(STRANGE), chr(draw.randrange(32, 127)), text[start:end] * 2))
    return text[:start] + new + text[end:]


def _tokens(draw: random.Random, text: str) -> str:
    tokens = TOKEN.findall(text)
    if len(tokens) < 2:
        return text
    one, two = draw.randrange(len(tokens)), draw.randrange(len(tokens))
    match draw.randrange(4):
        case 0:
            tokens[one], tokens[two] = tokens[two], tokens[one]
        case 1:
            tokens[one] = draw.choice(WORDS)
        case 2:
            tokens[one] = tokens[two]
        case 3:
            del tokens[one : one + draw.randint(1, 3)]
    return "".join(tokens)


def _shape(draw: random.Random, text: str) -> str:
    """An expression in place of a name, most of them sensible somewhere."""
    names = list(re.finditer(r"\b[A-Za-z_]\w*\b", text))
    if not names:
        return text
    found = draw.choice(names)
    new = draw.choice(SHAPES).format(found[0])
    return text[: found.start()] + new + text[found.end() :]


def _number(draw: random.Random, text: str) -> str:
    found = list(re.finditer(r"\d+(\.\d+)?", text))
    if not found:
        return text
    place = draw.choice(found)
    return text[: place.start()] + draw.choice(NUMBERS) + text[place.end() :]


def _lines(draw: random.Random, text: str) -> str:
    lines = text.split("\n")
    one, two = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(4):
        case 0:
            del lines[one]
        case 1:
            lines.insert(two, lines[one])
        case 2:
            lines[one], lines[two] = lines[two], lines[one]
        case 3:
            lines.insert(two, lines.pop(one))
    return "\n".join(lines)


def _indent(draw: random.Random, text: str) -> str:
    lines = text.split("\n")
    place = draw.randrange(len(lines))
    step = draw.choice((-2, -1, 1, 2, 4))
    lines[place] = lines[place][-step:] if step < 0 else " " * step + lines[place]
    return "\n".join(lines)


def _repeat(draw: random.Random, text: str) -> str:
    """A piece many times over: long sums, deep brackets, many lines."""
    start = draw.randint(0, len(text))
    end = min(len(text), start + draw.choice((1, 2, 5, 20, 80)))
    times = draw.choice((2, 3, 10, 50, 120, 500, 3000))
    return text[:start] + text[start:end] * times + text[end:]
