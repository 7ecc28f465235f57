"""What a formal language or an algorithm is: strings by size, and a question at each symbol."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import fwgen

Word = tuple[str, ...]
Window = tuple[int, int]  # least and greatest size
IGNORED = -100  # the target where nothing is asked
TRIES = 100_000  # for one string, before a window counts as out of reach
MISSES = 1000  # strings in a row that were there already, before a window counts as exhausted


@dataclass(frozen=True)
class Setup:
    """Sizes to train on, longer ones to be judged on, and how much there is to train on."""

    lengths: Window
    longer: tuple[Window, ...]
    strings: int = 0  # distinct ones for training; 0: fresh ones in every batch


@dataclass(frozen=True)
class Language:
    """Strings over an alphabet and, for each symbol, the class that follows from those up to it.

    Sizes are counted in `unit`; possible ones are `first`, `first + step` and so on. `draw` makes a
    string whose size is in a range, or None where the draw did not lead to one. `label` gives a
    class per symbol, None where nothing is asked.
    """

    name: str
    about: str
    alphabet: tuple[str, ...]
    classes: tuple[str, ...]
    draw: Callable[[random.Random, range], Word | None]
    label: Callable[[Word], Sequence[str | None]]
    small: Setup  # minutes on two cores
    full: Setup  # as published, or as close as is known
    unit: str = "symbols"
    first: int = 1
    step: int = 1
    single: bool = False  # one string per size

    def sizes(self, window: Window) -> range:
        """The possible sizes in a window; raises ArgumentError if there are none."""
        low, high = window
        start = max(self.first, low + (self.first - low) % self.step)
        if not 0 < low <= high or start > high:
            example = f"{self.first}-{self.first + 9 * self.step}"
            raise fwgen.ArgumentError(
                f"lengths: expected a window such as {example} in {self.unit} that holds a size of "
                f"{self.name} ({self.first}, {self.first + self.step}, ...), got {low}-{high}"
            )
        return range(start, high + 1, self.step)

    def sample(self, rng: random.Random, window: Window) -> Word:
        """One string; raises ArgumentError for a window that draws do not reach."""
        sizes = self.sizes(window)
        for _ in range(TRIES):
            word = self.draw(rng, sizes)
            if word is not None:
                return word
        raise fwgen.ArgumentError(
            f"lengths: expected sizes that {self.name} has often enough, {TRIES:,} draws found "
            f"none of {window[0]}-{window[1]} {self.unit}; a wider window helps"
        )

    def distinct(
        self, rng: random.Random, window: Window, count: int, without: Collection[Word] = ()
    ) -> list[Word]:
        """Up to `count` different strings, fewer if there are not so many or the rest is rare.

        Strings of `without` are left out, unless there is but one of each size.
        """
        if self.single:
            words = [self.sample(rng, (size, size)) for size in self.sizes(window)]
            rng.shuffle(words)
            return words[:count]
        found: dict[Word, None] = {}  # in the order of drawing
        misses = 0
        while len(found) < count and misses < MISSES:
            word = self.sample(rng, window)
            misses = misses + 1 if word in found or word in without else 0
            if not misses:
                found[word] = None
        return list(found)

    def encode(self, words: Sequence[Word]) -> tuple[Tensor, Tensor]:
        """Symbols and targets, [B, T] each, as numbers.

        Short strings are filled up at their ends with symbol 0, which nothing before can see, and
        IGNORED.
        """
        shape = len(words), max(map(len, words))
        symbols = torch.zeros(shape, dtype=torch.int64)
        targets = torch.full(shape, IGNORED)
        for row, word in enumerate(words):
            symbols[row, : len(word)] = torch.tensor([self._symbols[s] for s in word])
            labels = [IGNORED if c is None else self._classes[c] for c in self.label(word)]
            targets[row, : len(word)] = torch.tensor(labels)
        return symbols, targets

    @cached_property
    def _symbols(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.alphabet)}

    @cached_property
    def _classes(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes)}
