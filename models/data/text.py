"""Text for language models: splits of a corpus, tokenizers, and contiguous streams of tokens.

A corpus is a folder with `train.txt`, `valid.txt` and `test.txt`, a folder with WikiText's
`wiki.train.tokens` (or `.raw`) and so on, or one text file, whose last tenth is held out.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

import fwgen

from ..distributed import World

SPLITS = ("train", "valid", "test")
NAMES = ("{}.txt", "wiki.{}.tokens", "wiki.{}.raw")
LINES = 20_000  # encoded at once


def read_split(data: Path, split: str) -> str:
    """The text of a split; raises ArgumentError where there is none."""
    if split not in SPLITS:
        raise fwgen.ArgumentError(f"split: expected one of {', '.join(SPLITS)}, got {split}")
    if data.is_dir():
        names = [name.format(split) for name in NAMES]
        found = [data / name for name in names if (data / name).is_file()]
        if not found:
            raise fwgen.ArgumentError(f"data: expected one of {', '.join(names)} in {data}")
        return _read(found[0])
    if not data.is_file():
        raise fwgen.ArgumentError(f"data: expected a folder or a text file, found no {data}")
    return _cut(_read(data), split)


def _cut(text: str, split: str) -> str:
    """90 % to train on, then 5 % to validate and 5 % to test, cut between lines."""
    edges = [0]
    for share in (0.90, 0.95):
        line_end = text.find("\n", int(share * len(text)))
        edges.append(len(text) if line_end < 0 else line_end + 1)
    edges.append(len(text))
    place = SPLITS.index(split)
    return text[edges[place] : edges[place + 1]]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise fwgen.ArgumentError(f"data: {path} is not UTF-8 text: {error}") from None


class Tokenizer(Protocol):
    """Text <-> numbers below `vocab`; `decode` of a piece is a piece of the text."""

    kind: str
    vocab: int

    def encode(self, text: str) -> Tensor: ...
    def decode(self, tokens: Sequence[int]) -> str: ...
    def words(self, tokens: Sequence[int]) -> int: ...
    def to_text(self) -> str: ...


class Bytes:
    """UTF-8 bytes."""

    kind, vocab = "bytes", 256

    def encode(self, text: str) -> Tensor:
        return torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")

    def words(self, tokens: Sequence[int]) -> int:
        """Words between white space."""
        return len(self.decode(tokens).split())

    def to_text(self) -> str:
        return json.dumps({"kind": self.kind})


class Words:
    """Words between white space and an end of every line, numbered by frequency (WikiText)."""

    kind, end, unknown = "words", "<eos>", "<unk>"

    def __init__(self, words: Sequence[str]) -> None:
        self.list, self.vocab = list(words), len(words)
        self.number = {word: number for number, word in enumerate(self.list)}

    @classmethod
    def learn(cls, text: str) -> Words:
        counts: Counter[str] = Counter({cls.unknown: 0})
        counts.update(text.split())
        counts[cls.end] += text.count("\n")
        return cls([word for word, _ in counts.most_common()])

    def encode(self, text: str) -> Tensor:
        unknown, end = self.number[self.unknown], self.number[self.end]
        numbers, lines = array("i"), text.split("\n")  # compact: a corpus has 100 million
        for line in lines[:-1]:
            numbers.extend(self.number.get(word, unknown) for word in line.split())
            numbers.append(end)
        numbers.extend(self.number.get(word, unknown) for word in lines[-1].split())
        return torch.from_numpy(np.array(numbers, np.int32))

    def decode(self, tokens: Sequence[int]) -> str:
        words = [self.list[token] for token in tokens]
        return "".join("\n" if word == self.end else word + " " for word in words)

    def words(self, tokens: Sequence[int]) -> int:
        """Ends of lines count, as in the published figures."""
        return len(tokens)

    def to_text(self) -> str:
        return json.dumps({"kind": self.kind, "words": self.list}, ensure_ascii=False)


class Bpe:
    """Byte pairs, learned from text; any text is coded without loss. Needs `tokenizers`."""

    kind = "bpe"

    def __init__(self, text: str) -> None:
        self.coder: Any = _tokenizers().Tokenizer.from_str(text)
        self.vocab = self.coder.get_vocab_size()

    @classmethod
    def learn(cls, text: str, vocab: int) -> Bpe:
        library = _tokenizers()
        if vocab < 256:
            raise fwgen.ArgumentError(f"vocab: expected at least 256 for bpe, got {vocab}")
        coder = library.Tokenizer(library.models.BPE())
        coder.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        coder.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab,
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        coder.train_from_iterator(text.splitlines(keepends=True), trainer)
        return cls(coder.to_str())

    def encode(self, text: str) -> Tensor:
        parts = [np.empty(0, np.int32)]
        for lines in _batches(text.splitlines(keepends=True)):
            coded = self.coder.encode_batch_fast(lines, add_special_tokens=False)
            parts.append(np.fromiter((i for one in coded for i in one.ids), np.int32))
        return torch.from_numpy(np.concatenate(parts))

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.coder.decode(list(tokens), skip_special_tokens=False)
        return text

    def words(self, tokens: Sequence[int]) -> int:
        """Words between white space."""
        return len(self.decode(tokens).split())

    def to_text(self) -> str:
        return json.dumps({"kind": self.kind, "coder": self.coder.to_str()})


def learn_tokenizer(kind: str, text: str, vocab: int) -> Tokenizer:
    """ "bytes", "words" or "bpe" over the training text; `vocab` is the size of a bpe."""
    match kind:
        case "bytes":
            return Bytes()
        case "words":
            return Words.learn(text)
        case "bpe":
            return Bpe.learn(text, vocab)
    raise fwgen.ArgumentError(f"tokenizer: expected bytes, words or bpe, got {kind}")


def learn_in_first(world: World, kind: str, text: str, vocab: int) -> Tokenizer:
    """`learn_tokenizer` in the first process; the others are told."""
    learned = world.from_first(lambda: learn_tokenizer(kind, text, vocab).to_text())
    return tokenizer_from(learned)


def tokenizer_from(text: str) -> Tokenizer:
    """What `to_text` wrote."""
    found = json.loads(text)
    match found["kind"]:
        case "bytes":
            return Bytes()
        case "words":
            return Words(found["words"])
    return Bpe(found["coder"])


class Streams:
    """A batch of contiguous streams: row b reads its own share of the tokens, segment by segment.

    `first` of a segment tells that a new pass begins, where carried states end. Passes start at
    different offsets, drawn from the generator, so segments are not cut at the same places. With
    `rows` only these are read.
    """

    def __init__(
        self,
        tokens: Tensor,
        batch: int,
        length: int,
        generator: torch.Generator,
        device: str,
        rows: slice = slice(None),
    ) -> None:
        self.share = (len(tokens) - 1) // batch
        if self.share < length:
            raise fwgen.ArgumentError(
                f"data: {batch} streams with segments of {length} need {batch * length + 1} "
                f"tokens, the training text has {len(tokens)}"
            )
        used = tokens[: batch * self.share + 1]
        self.inputs = used[:-1].view(batch, self.share)[rows]
        self.targets = used[1:].view(batch, self.share)[rows]
        self.length, self.generator, self.device = length, generator, device
        self.column = self.share  # a pass begins with the first segment

    def next(self) -> tuple[Tensor, Tensor, bool]:
        """Inputs and targets [B, T], int64, and whether they begin a pass."""
        first = self.column + self.length > self.share
        if first:
            slack = min(self.length, self.share - self.length)
            self.column = int(torch.randint(slack + 1, (), generator=self.generator))
        here = slice(self.column, self.column + self.length)
        self.column += self.length
        x, y = (part[:, here].long().to(self.device) for part in (self.inputs, self.targets))
        return x, y, first

    def state(self) -> dict[str, Tensor]:
        return {"column": torch.tensor(self.column)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.column = int(state["column"])


def _batches(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    yield from (lines[i : i + LINES] for i in range(0, len(lines), LINES))


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise fwgen.UnsupportedError(
            "a bpe needs the package tokenizers: pip install 'fwgen[models]'; "
            "--tokenizer bytes needs nothing"
        ) from None
    return tokenizers


def digest(tensors: Iterable[Tensor]) -> str:
    """A short name for the contents, the same on every machine."""
    import hashlib

    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:16]
