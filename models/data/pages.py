"""Pages of LibreOffice help, their titles and what they say, to look pages up by their titles.

    python -m fwgen.models.data.pages data/pages

Writes train.title and train.body and so on, a page per line number. The split is by a hash of the
page's name. Pages with the title of another one are left out, and so are headings, so that no title
stands in its page as such.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import fwgen

from .debian import fetch
from .prose import split_of

PACKAGE = "libreoffice-help-en-us"
TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
PARAGRAPH = re.compile(r'<p\b[^>]*\bid="[^"]*"[^>]*>(.*?)</p>', re.DOTALL)
LEAST = 20  # words of a body
DIGESTS = {"train": "9ca857b901f4", "valid": "e1eba00abc1d", "test": "12d123b630ec"}

Page = tuple[str, str, str]  # name, title, body


def pages(root: Path) -> Iterator[Page]:
    """All pages with enough to read; raises UnsupportedError where the package has none."""
    folder = next(root.rglob("help/en-US/text"), None)
    if folder is None:
        raise fwgen.UnsupportedError(f"the package {root.name} holds no help/en-US/text any more")
    for path in sorted(folder.rglob("*.html")):
        text = path.read_text("utf-8", "replace")
        found = TITLE.search(text)
        title = plain(found[1]) if found else ""
        body = " ".join(filter(None, (plain(part) for part in PARAGRAPH.findall(text))))
        if title and len(body.split()) >= LEAST:
            yield str(path.relative_to(folder).with_suffix("")), title, body


def plain(markup: str) -> str:
    """The text alone, on one line."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", markup))).strip()


def deal(found: Sequence[Page]) -> dict[str, list[tuple[str, str]]]:
    """Title and body of the pages of each split, every title and every body once."""
    titles = Counter(title.lower() for _, title, _ in found)
    splits: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    bodies = set()
    for name, title, body in found:
        if titles[title.lower()] == 1 and body not in bodies:
            bodies.add(body)
            splits[split_of(name)].append((title, body))
    return splits


def prepare(out: Path, cache: Path) -> bool:
    """Write the splits; true when their digests are the known ones."""
    out.mkdir(parents=True, exist_ok=True)
    same = True
    for split, rows in deal(list(pages(fetch(PACKAGE, cache)))).items():
        for column, part in enumerate(("title", "body")):
            text = "".join(f"{row[column]}\n" for row in rows)
            (out / f"{split}.{part}").write_text(text, encoding="utf-8")
        lines = "".join(f"{title}\t{body}\n" for title, body in rows)
        found = hashlib.sha256(lines.encode()).hexdigest()[:12]
        note = "" if found == DIGESTS[split] else f", expected {DIGESTS[split]}"
        same = same and not note
        words = sum(len(body.split()) for _, body in rows)
        print(f"{split}: {len(rows):,} pages, {words:,} words, {found}{note}")
    return same


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fwgen.models.data.pages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="folder for train.title, train.body and so on")
    parser.add_argument("--cache", type=Path, default=Path("data", "packages"))
    args = parser.parse_args(arguments)
    try:
        same = prepare(args.out, args.cache)
    except (fwgen.UnsupportedError, OSError) as error:
        print(f"fwgen: error: {error}", file=sys.stderr)
        return 1
    if not same:
        print(
            "warning: the package holds another text than the documented results are for",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
