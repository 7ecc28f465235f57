"""English prose in the public domain, for language models: Austen and Spurgeon.

    python -m fwgen.models.data.prose data/prose            # 15.8 MB, 2.9 million words
    python -m fwgen.models.data.prose data/austen --austen  # 4 MB, the six novels alone

Writes train.txt, valid.txt and test.txt. Documents (chapters) are dealt out by a hash of their
name, so the splits are the same everywhere; their digests are checked.
"""

from __future__ import annotations

import argparse
import bz2
import hashlib
import html
import lzma
import re
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fwgen

from .debian import fetch

DIGESTS = {
    "austen": {"train": "b6965d2687cd", "valid": "53023e4e8563", "test": "6fdf8d65eb53"},
    "austen and tdavid": {"train": "2f1ffb896559", "valid": "7f648057d3e2", "test": "3e1d02c29941"},
}


def austen(root: Path) -> str:
    """The novels, a form feed between them, from the data file of R's `janeaustenr`."""
    (archive,) = root.rglob("janeaustenr/data/Rdata.rdb")
    books = (list(_strings(data)) for data in _objects(archive.read_bytes()))
    return "".join("\n".join(lines) + "\n\f\n" for lines in books if len(lines) > 100)


def _objects(blob: bytes) -> Iterator[bytes]:
    """The compressed objects: a length, a letter for the method (none: zlib), the data."""
    place = 0
    while place < len(blob):
        (size,) = struct.unpack_from(">I", blob, place)
        method, body = blob[place + 4 : place + 5], blob[place + 5 :]
        reader: Any
        if method == b"2":
            reader = bz2.BZ2Decompressor()
        elif method == b"Z":
            raw = [{"id": lzma.FILTER_LZMA2}]
            reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=raw)
        else:
            reader, body = zlib.decompressobj(), blob[place + 4 :]
        data = reader.decompress(body)
        if len(data) != size:
            raise fwgen.UnsupportedError("janeaustenr: an object of another size than it says")
        place = len(blob) - len(reader.unused_data)
        yield data


def _strings(data: bytes) -> Iterator[str]:
    """One serialised vector of strings (XDR, version 2 or 3); of anything else nothing."""
    place = 14
    if data[2:6] == b"\0\0\0\3":  # version 3 names its encoding first
        place += 4 + struct.unpack_from(">I", data, place)[0]
    flags, count = struct.unpack_from(">II", data, place)
    place += 8
    for _ in range(count if flags & 255 == 16 else 0):
        _, size = struct.unpack_from(">Ii", data, place)
        place += 8
        yield data[place : place + max(size, 0)].decode("utf-8", "replace")
        place += max(size, 0)


def tdavid(root: Path) -> str:
    """The Treasury of David, a chapter per line, from a compressed SWORD commentary."""
    lines = []
    for index in sorted(root.rglob("*.?zs"), reverse=True):  # the Old Testament first
        data = index.with_name(index.name[:-1] + "z").read_bytes()
        for start, size, _ in struct.iter_unpack("<III", index.read_bytes()):
            chapter = zlib.decompress(data[start : start + size]).decode("utf-8", "replace")
            text = html.unescape(re.sub(r"<[^>]+>", " ", chapter))
            lines.append(re.sub(r"\s+", " ", text).strip())
    return "\n".join(lines) + "\n"


SOURCES = {
    "austen": ("r-cran-janeaustenr", austen),
    "tdavid": ("sword-comm-tdavid", tdavid),
}


def documents(name: str, text: str) -> Iterator[tuple[str, str]]:
    """(key, text) of each chapter of more than 100 words."""
    if name == "austen":  # lines of a paragraph are joined
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
        parts = re.split(r"(?m)^(?=(?:CHAPTER|Chapter) )", text)
    else:
        parts = text.splitlines()
    kept = [part for part in parts if len(part.split()) > 100]
    for number, part in enumerate(kept):
        yield f"{name}/{number}", part.strip() + "\n\n"


def split_of(key: str) -> str:
    """5 % test, 5 % valid, by a hash."""
    slot = int(hashlib.sha256(key.encode()).hexdigest(), 16) % 100
    return "test" if slot < 5 else "valid" if slot < 10 else "train"


def prepare(out: Path, names: Sequence[str], cache: Path) -> bool:
    """Write the splits; true when their digests are the known ones."""
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for name in names:
        package, read = SOURCES[name]
        for key, text in documents(name, read(fetch(package, cache))):
            splits[split_of(key)].append(text)
    out.mkdir(parents=True, exist_ok=True)
    known, same = DIGESTS[" and ".join(names)], True
    for split, texts in splits.items():
        body = "".join(texts)
        (out / f"{split}.txt").write_text(body, encoding="utf-8")
        found = hashlib.sha256(body.encode()).hexdigest()[:12]
        note = "" if found == known[split] else f", expected {known[split]}"
        same = same and not note
        print(f"{split}: {len(texts)} documents, {len(body.split()):,} words, {found}{note}")
    return same


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fwgen.models.data.prose",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="folder for train.txt, valid.txt and test.txt")
    parser.add_argument("--austen", action="store_true", help="the novels alone")
    parser.add_argument("--cache", type=Path, default=Path("data", "packages"))
    args = parser.parse_args(arguments)
    names = ("austen",) if args.austen else ("austen", "tdavid")
    try:
        same = prepare(args.out, names, args.cache)
    except (fwgen.UnsupportedError, OSError) as error:
        print(f"fwgen: error: {error}", file=sys.stderr)
        return 1
    if not same:
        print(
            "warning: the packages hold another text than the documented results are for",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
