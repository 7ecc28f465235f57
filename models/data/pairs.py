"""Parallel text for translation: the files, lines as tokens, batches of about equal length.

A corpus is a folder with `train.en` and `train.de` (WMT style, a pair per line number; any two
languages) and so on for `valid` and `test`, or the word "numbers" for the built-in number words.
A line break ends every sentence, and stands before the first word of a translation.

Letters: B sentences, S and T tokens of the longest source and target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import fwgen

from . import numbers
from .text import Tokenizer

BUILT_IN = "numbers"
SPLITS = {
    "train": ("train",),
    "valid": ("valid", "dev", "newstest2013"),
    "test": ("test", "newstest2014"),
}


def languages_of(data: Path, source: str = "", target: str = "") -> tuple[str, str]:
    """The names' endings of source and target; what is left open is English and the other one."""
    if str(data) == BUILT_IN:
        return "en", "de"
    if not data.is_dir():
        raise fwgen.ArgumentError(
            f"data: expected a folder with train.en, train.de, ... or `{BUILT_IN}`, found no {data}"
        )
    found = sorted(path.name.split(".", 1)[1] for path in data.glob("train.*"))
    source = source or ("en" if "en" in found else "")
    others = [name for name in found if name != source]
    target = target or (others[0] if len(others) == 1 else "")
    if source not in found or target not in found or source == target:
        raise fwgen.ArgumentError(
            f"data: expected train.SOURCE and train.TARGET in {data}, found "
            f"{', '.join('train.' + name for name in found) or 'no train.*'}"
            "; --source and --target name the endings"
        )
    return source, target


def read_pairs(data: Path, split: str, languages: tuple[str, str]) -> tuple[list[str], list[str]]:
    """The lines of both sides; raises ArgumentError where there are none or the numbers differ."""
    if split not in SPLITS:
        raise fwgen.ArgumentError(f"split: expected one of {', '.join(SPLITS)}, got {split}")
    if str(data) == BUILT_IN:
        return numbers.pairs(split)
    names = [name for name in SPLITS[split] if (data / f"{name}.{languages[0]}").is_file()]
    if not names:
        wanted = " or ".join(f"{name}.{languages[0]}" for name in SPLITS[split])
        raise fwgen.ArgumentError(f"data: expected {wanted} in {data}")
    paths = [data / f"{names[0]}.{language}" for language in languages]
    source, target = (read_lines(path) for path in paths)
    if len(source) != len(target):
        raise fwgen.ArgumentError(
            f"data: {paths[0]} has {len(source)} lines, {paths[1]} has {len(target)}"
        )
    if not any(source) or not any(target):
        raise fwgen.ArgumentError(f"data: {paths[0]} and {paths[1]} have no words")
    return source, target


def read_lines(path: Path) -> list[str]:
    """Lines between line feeds only: other marks of Unicode may stand inside a sentence."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise fwgen.ArgumentError(f"data: {path} is not UTF-8 text: {error}") from None
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []


class Lines:
    """Many lines as tokens, each with its end."""

    def __init__(self, tokenizer: Tokenizer, lines: Sequence[str]) -> None:
        end = end_of(tokenizer)
        text = "".join(" ".join(line.split("\n")).strip() + "\n" for line in lines)
        self.tokens = tokenizer.encode(text).int()
        ends = (self.tokens == end).nonzero()[:, 0] + 1
        if len(ends) != len(lines):
            raise fwgen.ArgumentError(f"data: {len(lines)} lines have {len(ends)} ends as tokens")
        self.starts = torch.cat([torch.zeros(1, dtype=ends.dtype), ends])
        self.lengths = self.starts.diff()

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, T] of these lines, int64, padded with zeros, and their lengths [B]."""
        lengths = self.lengths[which]
        places = torch.arange(int(lengths.max()))
        real = places < lengths[:, None]  # [B, T]
        found = self.tokens[torch.where(real, self.starts[which][:, None] + places, 0)]
        return torch.where(real, found, 0).long(), lengths


def end_of(tokenizer: Tokenizer) -> int:
    """The token of a line break."""
    (end,) = tokenizer.encode("\n").tolist()
    return int(end)


@dataclass(frozen=True)
class Batch:
    """Sentences with their translations; both end with the token of a line break."""

    source: Tensor  # [B, S]
    lengths: Tensor  # [B]
    target: Tensor  # [B, T]
    real: Tensor  # [B, T], false where the target is padded

    def inputs(self, end: int) -> Tensor:
        """What the decoder reads: the target, one place later."""
        return torch.cat([torch.full_like(self.target[:, :1], end), self.target[:, :-1]], 1)

    def part(self, rows: slice) -> Batch:
        """Some of the sentences; the padding stays."""
        return Batch(*(x[rows] for x in (self.source, self.lengths, self.target, self.real)))

    def to(self, device: str) -> Batch:
        fields = (self.source, self.lengths, self.target, self.real)
        return Batch(*(tensor.to(device) for tensor in fields))


class Pairs:
    """Sources and targets as tokens."""

    def __init__(self, source: Lines, target: Lines) -> None:
        self.source, self.target = source, target

    def longer(self) -> Tensor:
        """Tokens of the longer side of each pair."""
        return torch.maximum(self.source.lengths, self.target.lengths)

    def batch(self, which: Tensor) -> Batch:
        source, lengths = self.source.padded(which)
        target, target_lengths = self.target.padded(which)
        real = torch.arange(target.shape[1]) < target_lengths[:, None]
        return Batch(source, lengths, target, real)

    def batches(self, tokens: int) -> Iterator[Batch]:
        """All pairs once, from short to long."""
        lengths = self.longer()
        for which in groups(lengths, lengths.argsort(stable=True), tokens):
            yield self.batch(which)


def groups(lengths: Tensor, order: Tensor, tokens: int) -> list[Tensor]:
    """Cut an order of rising lengths so that a group has at most `tokens`, padding included."""
    found, start = [], 0
    for i, length in enumerate(lengths[order].tolist()):
        if i > start and (i + 1 - start) * length > tokens:
            found.append(order[start:i])
            start = i
    return [*found, order[start:]] if len(order) else []


class Batches:
    """Batches of about equal length in random order, one pass after another.

    A pass is a function of the seed and its number, so the place is all there is to remember.
    Pairs with a side of no words or of more than `longest` tokens are left out.
    """

    def __init__(self, pairs: Pairs, tokens: int, longest: int, seed: int, device: str) -> None:
        self.pairs, self.tokens, self.seed, self.device = pairs, tokens, seed, device
        self.lengths = pairs.longer()
        words = torch.minimum(pairs.source.lengths, pairs.target.lengths) > 1  # not the end alone
        self.kept = (words & (self.lengths <= min(longest, tokens))).nonzero()[:, 0]
        if not len(self.kept):
            raise fwgen.ArgumentError(
                f"data: none of {len(pairs.source)} training pairs has at most "
                f"{min(longest, tokens)} tokens on both sides"
            )
        self.number = self.place = 0
        self.groups = self._pass()

    def _pass(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * self.number)
        mixed = self.kept[torch.randperm(len(self.kept), generator=generator)]
        order = mixed[self.lengths[mixed].argsort(stable=True)]
        cut = groups(self.lengths, order, self.tokens)
        return [cut[i] for i in torch.randperm(len(cut), generator=generator).tolist()]

    @property
    def mean_tokens(self) -> int:
        """Target tokens of a batch, on average."""
        return round(int(self.pairs.target.lengths[self.kept].sum()) / len(self.groups))

    def next(self) -> Batch:
        if self.place == len(self.groups):
            self.number, self.place = self.number + 1, 0
            self.groups = self._pass()
        self.place += 1
        return self.pairs.batch(self.groups[self.place - 1]).to(self.device)

    def state(self) -> dict[str, Tensor]:
        return {"pass": torch.tensor(self.number), "place": torch.tensor(self.place)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.number, self.place = int(state["pass"]), int(state["place"])
        self.groups = self._pass()
