"""Parallel texts for translation: English-German help pages, the English-Spanish Bible.

    python -m fwgen.models.data.parallel ende data/ende   # 30,735 pairs to train on
    python -m fwgen.models.data.parallel enes data/enes   # 27,196 pairs, public domain

Writes train.en, train.de and so on, a pair per line number. Pages (for the Bible, passages of 25
verses) are dealt out by a hash of their name, so no page is in two splits, and pairs whose English
side is trained on are neither validated nor tested. The digests of the splits are checked.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import re
import struct
import sys
import xml.etree.ElementTree as ET
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import fwgen

from .debian import fetch
from .prose import split_of

Row = tuple[str, str, str]  # what decides its split, English, translation

PARAGRAPH = re.compile(
    r'<(p|h[1-6])\b[^>]*\bid="([a-z]+_id[0-9A-Za-z_]+)"[^>]*>(.*?)</\1>', re.DOTALL
)
MALLARD = "{http://projectmallard.org/1.0/}"
BLOCKS = {MALLARD + tag for tag in ("title", "desc", "p", "td")}
# Slots of the two Bibles agree to here: from 3 John 15 on English has a verse more.
AGREE = {"ot": 24115, "nt": 7791}
MARKUP = re.compile(r"<note.*?</note>|<title.*?</title>|<[^>]+>", re.DOTALL)


def libreoffice(english: Path, german: Path) -> Iterator[Row]:
    """Paragraphs of the same page with the same id."""
    roots = [_find(english, "help/en-US/text"), _find(german, "help/de/text")]
    seen = set()
    for path in sorted(roots[0].rglob("*.html")):
        page = path.relative_to(roots[0])
        if not (roots[1] / page).exists():
            continue
        translated = _paragraphs(roots[1] / page)
        for key, text in _paragraphs(path).items():
            pair = text, translated.get(key, "")
            if _is_pair(*pair) and pair not in seen:
                seen.add(pair)
                yield str(page.with_suffix("")), *pair


def _paragraphs(path: Path) -> dict[str, str]:
    """Text by id. A page that is embedded can bring another paragraph of an id: both are left."""
    found = PARAGRAPH.findall(path.read_text("utf-8", "replace"))
    times = Counter(key for _, key, _ in found)
    return {
        key: _one_line(html.unescape(re.sub(r"<[^>]+>", "", body)))
        for _, key, body in found
        if times[key] == 1
    }


def gnome(root: Path) -> Iterator[Row]:
    """Blocks at the same place of pages that have the same structure in both languages."""
    pages, seen = _find(root, "share/help/C"), set()
    for path in sorted(pages.rglob("*.page")):
        translated = pages.parent / "de" / path.relative_to(pages)
        if not translated.exists():
            continue
        ours, theirs = _blocks(path), _blocks(translated)
        if [tag for tag, _ in ours] != [tag for tag, _ in theirs]:
            continue
        for (_, text), (_, other) in zip(ours, theirs, strict=True):
            if _is_pair(text, other) and (text, other) not in seen:
                seen.add((text, other))
                yield f"gnome/{path.stem}", text, other


def _blocks(path: Path) -> list[tuple[str, str]]:
    """Tag and text of the innermost blocks, in their order, without the credits."""
    root = ET.parse(path).getroot()
    left_out = {node for credit in root.iter(MALLARD + "credit") for node in credit.iter()}
    return [
        (node.tag, _one_line("".join(node.itertext())))
        for node in root.iter()
        if node.tag in BLOCKS
        and node not in left_out
        and not any(inner.tag in BLOCKS for inner in node.iter() if inner is not node)
    ]


def _is_pair(text: str, other: str) -> bool:
    return bool(text and other) and text != other and len(text.split()) > 1


def bible(english: Path, spanish: Path) -> Iterator[Row]:
    """Verses of the World English Bible and of Reina-Valera 1909 in the same slot."""
    for part, agree in AGREE.items():
        ours, theirs = (list(_verses(root, part)) for root in (english, spanish))
        for slot, (text, other) in enumerate(zip(ours[:agree], theirs, strict=False)):
            if text and other:
                yield f"{part}{slot // 25}", text, other


def _verses(root: Path, part: str) -> Iterator[str]:
    """The slots of a compressed SWORD module; headings are empty ones."""
    index, places, data = (_find(root, f"{part}.bz{end}").read_bytes() for end in "svz")
    books = [
        zlib.decompress(data[start : start + size])
        for start, size, _ in struct.iter_unpack("<III", index)
    ]
    for book, start, size in struct.iter_unpack("<IIH", places):
        raw = books[book][start : start + size].decode("utf-8", "replace") if size else ""
        text = re.sub(r"\s+", " ", html.unescape(MARKUP.sub(" ", raw)))
        text = re.sub(r"([“‘(])\s+", r"\1", text)
        yield re.sub(r"\s+([,.;:?!’”)])", r"\1", text).strip()


def _find(root: Path, name: str) -> Path:
    """The file or folder of this name in an unpacked package."""
    found = next(root.rglob(name), None)
    if found is None:
        raise fwgen.UnsupportedError(f"the package {root.name} holds no {name} any more")
    return found


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def deal(rows: Sequence[Row]) -> dict[str, list[tuple[str, str]]]:
    """The pairs of each split: of a sensible length, each once, none tested that is trained on."""
    kept = [row for row in rows if _sensible(*row[1:])]
    trained = {_plain(text) for key, text, _ in kept if split_of(key) == "train"}
    splits: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    seen = set()
    for key, text, other in kept:
        split, pair = split_of(key), (_plain(text), _plain(other))
        if pair in seen or (split != "train" and pair[0] in trained):
            continue
        seen.add(pair)
        splits[split].append((text, other))
    return splits


def _sensible(text: str, other: str) -> bool:
    return (
        2 <= len(text.split()) <= 60
        and 1 <= len(other.split()) <= 60
        and 0.4 <= len(other) / len(text) <= 2.5
        and re.search(r"[A-Za-z]{3}", other) is not None
    )


def _plain(text: str) -> str:
    """Letters and digits only, for comparing."""
    return re.sub(r"\W+", " ", text.lower()).strip()


# Packages, and the first digits of the SHA-256 of each split as lines "English <tab> translation".
GERMAN = ("libreoffice-help-en-us", "libreoffice-help-de", "gnome-user-docs")
SPANISH = ("sword-text-web", "sword-text-sparv")
DIGESTS = {
    "ende": {"train": "063a2e6a0ced", "valid": "5b90aa22998a", "test": "2beb1419581e"},
    "enes": {"train": "290aaf8ed599", "valid": "15e3da01d966", "test": "6a65acc43340"},
}


def prepare(pair: str, out: Path, cache: Path) -> bool:
    """Write the splits of "ende" or "enes"; true when their digests are the known ones."""
    if pair == "ende":
        english, german, docs = (fetch(package, cache) for package in GERMAN)
        rows = [*libreoffice(english, german), *gnome(docs)]
    else:
        rows = [*bible(*(fetch(package, cache) for package in SPANISH))]
    out.mkdir(parents=True, exist_ok=True)
    same = True
    for split, pairs in deal(rows).items():
        for column, language in enumerate((pair[:2], pair[2:])):
            text = "".join(f"{one[column]}\n" for one in pairs)
            (out / f"{split}.{language}").write_text(text, encoding="utf-8")
        body = "".join(f"{text}\t{other}\n" for text, other in pairs)
        found = hashlib.sha256(body.encode()).hexdigest()[:12]
        note = "" if found == DIGESTS[pair][split] else f", expected {DIGESTS[pair][split]}"
        same = same and not note
        words = sum(len(text.split()) for text, _ in pairs)
        print(f"{split}: {len(pairs):,} pairs, {words:,} English words, {found}{note}")
    return same


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fwgen.models.data.parallel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pair", choices=tuple(DIGESTS))
    parser.add_argument("out", type=Path, help="folder for train.en, train.de and so on")
    parser.add_argument("--cache", type=Path, default=Path("data", "packages"))
    args = parser.parse_args(arguments)
    try:
        same = prepare(args.pair, args.out, args.cache)
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
