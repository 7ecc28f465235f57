"""Parallel text: number words, files, lines as tokens, batches, and the parsers of packages."""

import itertools
import re
import struct
import zlib
from collections import Counter

import pytest
import torch

import fwgen
from fwgen.models.data import numbers, parallel
from fwgen.models.data.pairs import (
    Batches,
    Lines,
    Pairs,
    end_of,
    groups,
    languages_of,
    read_lines,
    read_pairs,
)
from fwgen.models.data.text import Bytes, learn_tokenizer

# --- number words


@pytest.mark.parametrize(
    ("n", "english", "german"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (16, "sixteen", "sechzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (70, "seventy", "siebzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred one", "einhunderteins"),
        (123, "one hundred twenty-three", "einhundertdreiundzwanzig"),
        (1001, "one thousand one", "eintausendeins"),
        (31000, "thirty-one thousand", "einunddreißigtausend"),
        (201_011, "two hundred one thousand eleven", "zweihunderteintausendelf"),
    ],
)
def test_number_words(n, english, german):
    assert (numbers.english(n), numbers.german(n)) == (english, german)


def test_no_two_numbers_share_their_words():
    some = [*range(2000), *range(0, 1_000_000, 997)]
    for words in (numbers.english, numbers.german):
        assert len({words(n) for n in set(some)}) == len(set(some))


def test_splits_of_numbers_are_fixed_and_apart():
    parts = {split: numbers.pairs(split) for split in numbers.SIZES}
    assert {split: len(source) for split, (source, _) in parts.items()} == numbers.SIZES
    seen = [set(source) for source, _ in parts.values()]
    for one, other in itertools.combinations(seen, 2):
        assert not one & other
    assert numbers.pairs("test") == parts["test"]
    assert parts["test"][0][:2] == [
        "ninety-five thousand seventy-eight",
        "thirty thousand seven hundred sixty-eight",
    ]


# --- files


def corpus(folder, **texts):
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_bytes(text.encode())
    return folder


def test_languages_are_found(tmp_path):
    corpus(tmp_path, train_en="a\n", train_de="b\n")
    assert languages_of(tmp_path) == ("en", "de")
    assert languages_of(tmp_path, "de", "en") == ("de", "en")
    assert languages_of(tmp_path, "de") == ("de", "en")
    corpus(tmp_path, train_fr="c\n")
    assert languages_of(tmp_path, target="fr") == ("en", "fr")
    with pytest.raises(fwgen.ArgumentError, match=r"found train.de, train.en, train.fr; --source"):
        languages_of(tmp_path)
    with pytest.raises(fwgen.ArgumentError, match="--source and --target name the endings"):
        languages_of(tmp_path, "en", "en")
    with pytest.raises(fwgen.ArgumentError, match=r"found no train\.\*"):
        languages_of(tmp_path.parent)
    with pytest.raises(fwgen.ArgumentError, match=r"or `numbers`, found no .*nowhere"):
        languages_of(tmp_path / "nowhere")


def test_names_of_wmt_are_read(tmp_path):
    corpus(tmp_path, train_en="a\n", train_de="b\n", newstest2013_en="c d\n", newstest2013_de="e\n")
    assert read_pairs(tmp_path, "valid", ("en", "de")) == (["c d"], ["e"])
    with pytest.raises(fwgen.ArgumentError, match=r"expected test\.en or newstest2014\.en in"):
        read_pairs(tmp_path, "test", ("en", "de"))
    with pytest.raises(fwgen.ArgumentError, match="expected one of train, valid, test, got dev"):
        read_pairs(tmp_path, "dev", ("en", "de"))


def test_sides_of_different_length_are_refused(tmp_path):
    corpus(tmp_path, train_en="a\nb\n", train_de="c\n")
    with pytest.raises(fwgen.ArgumentError, match=r"train.en has 2 lines, .*train.de has 1"):
        read_pairs(tmp_path, "train", ("en", "de"))


def test_empty_files_are_refused(tmp_path):
    corpus(tmp_path, train_en="\n\n", train_de="a\n\n")
    with pytest.raises(fwgen.ArgumentError, match="have no words"):
        read_pairs(tmp_path, "train", ("en", "de"))


def test_only_line_feeds_end_lines(tmp_path):
    corpus(tmp_path, f="one\u2028two\x0bthree\rfour\r\n\n last \u00a0\n")
    assert read_lines(tmp_path / "f") == ["one\u2028two\x0bthree\rfour", "", "last"]
    (tmp_path / "f").write_bytes(b"")
    assert read_lines(tmp_path / "f") == []
    (tmp_path / "f").write_bytes(b"\xff\n")
    with pytest.raises(fwgen.ArgumentError, match="is not UTF-8 text"):
        read_lines(tmp_path / "f")


# --- tokens


@pytest.mark.parametrize("kind", ["bytes", "words", "bpe"])
def test_lines_come_back_from_their_tokens(kind):
    lines = ["one two", "", "drei vier", "one\u2028two one", "vier one two drei two two"]
    tokenizer = learn_tokenizer(kind, "".join(f"{line}\n" for line in lines), 280)
    coded = Lines(tokenizer, lines)
    assert len(coded) == 5
    which = torch.tensor([4, 1, 0, 3])
    tokens, lengths = coded.padded(which)
    assert tokens.shape == (4, int(lengths.max()))
    end = end_of(tokenizer)
    for row, length, i in zip(tokens.tolist(), lengths.tolist(), which.tolist(), strict=True):
        assert row[length - 1] == end
        assert end not in row[: length - 1]
        assert set(row[length:]) <= {0}
        text = tokenizer.decode(row[: length - 1])
        assert text.split() == lines[i].split()


def pairs(count=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 30, (2, count), generator=generator).tolist()
    sides = [[f"{i:03d}" + "x" * n for i, n in enumerate(side)] for side in lengths]
    return Pairs(*(Lines(Bytes(), side) for side in sides)), sides


def words_of(batch):
    """Source and target of every row of a batch."""
    return [
        tuple(bytes(row).split(b"\n")[0].decode() for row in (source, target))
        for source, target in zip(batch.source.tolist(), batch.target.tolist(), strict=True)
    ]


def test_a_pass_has_every_pair_once_in_batches_of_a_bounded_size():
    both, sides = pairs()
    batches = Batches(both, 150, 100, 1, "cpu")
    passes = []
    for _ in range(2):
        found, sizes = [], []
        for _ in range(len(batches.groups)):
            batch = batches.next()
            found += words_of(batch)
            sizes.append(max(batch.source.numel(), batch.target.numel()))
            assert batch.real.sum() == sum(len(word) + 1 for _, word in words_of(batch))
        assert Counter(found) == Counter(zip(*sides, strict=True))
        assert max(sizes) <= 150
        assert sum(sizes) / len(sizes) > 110, "batches are not filled"
        passes.append(found)
    assert passes[0] != passes[1]
    total = sum(len(word) + 1 for word in sides[1])
    assert batches.mean_tokens == pytest.approx(total / len(batches.groups), rel=0.02)


def test_the_place_in_the_data_is_all_there_is_to_remember():
    both, _ = pairs()
    one, other = (Batches(both, 150, 100, 1, "cpu") for _ in range(2))
    for _ in range(len(one.groups) + 3):
        one.next()
    other.load_state(one.state())
    for _ in range(5):
        assert torch.equal(one.next().source, other.next().source)
    assert not torch.equal(Batches(both, 150, 100, 2, "cpu").next().source, one.next().source)


def test_long_and_empty_pairs_are_not_trained_on():
    sides = (["aaaa", "b", "", "c", "dd"], ["a", "bbbbbbbbbb", "x", "", "dd"])
    both = Pairs(*(Lines(Bytes(), side) for side in sides))
    batches = Batches(both, 100, 6, 1, "cpu")
    assert sorted(words_of(batches.next())) == [("aaaa", "a"), ("dd", "dd")]
    with pytest.raises(fwgen.ArgumentError, match="none of 5 training pairs has at most 2 tokens"):
        Batches(both, 100, 2, 1, "cpu")


def test_what_the_decoder_reads_is_the_target_one_place_later():
    both = Pairs(Lines(Bytes(), ["a", "b"]), Lines(Bytes(), ["xyz", "v"]))
    batch = both.batch(torch.tensor([0, 1]))
    assert batch.target.tolist() == [[*b"xyz\n"], [*b"v\n", 0, 0]]
    assert batch.inputs(10).tolist() == [[*b"\nxyz"], [*b"\nv\n", 0]]
    assert batch.real.tolist() == [[True] * 4, [True, True, False, False]]


def test_one_line_longer_than_a_group_stands_alone():
    lengths = torch.tensor([2, 2, 3, 50])
    cut = groups(lengths, torch.arange(4), 6)
    assert [group.tolist() for group in cut] == [[0, 1], [2], [3]]
    assert groups(lengths, torch.arange(0), 6) == []


# --- packages


def test_paragraphs_of_the_same_page_and_id_are_paired(tmp_path):
    pages = {
        "en-US": '<p class="a" id="par_id1">Open &amp; <b>close</b> it</p><h1 id="hd_id2">Word</h1>'
        '<p id="par_id3">Both say this</p><p id="par_id4">one here</p><p id="par_id4">two here</p>',
        "de": '<p id="par_id1">Öffnen &amp;\n schließen</p><h1 id="hd_id2">Wort</h1>'
        '<p id="par_id3">Both say this</p><p id="par_id4">eins hier</p>',
    }
    for language, text in pages.items():
        folder = tmp_path / language / "usr/help" / language / "text/swriter"
        folder.mkdir(parents=True)
        (folder / "page.html").write_text(text)
    (tmp_path / "en-US/usr/help/en-US/text/only.html").write_text('<p id="par_id1">Not here</p>')
    found = list(parallel.libreoffice(tmp_path / "en-US", tmp_path / "de"))
    assert found == [("swriter/page", "Open & close it", "Öffnen & schließen")]
    with pytest.raises(fwgen.UnsupportedError, match="holds no help/de/text"):
        list(parallel.libreoffice(tmp_path / "en-US", tmp_path / "en-US"))


def test_pages_of_the_same_structure_are_paired(tmp_path):
    page = '<page xmlns="http://projectmallard.org/1.0/"><info><credit><desc>{2}</desc></credit>'
    page += "</info><title>{0}</title><item><p>{1}</p></item>{3}</page>"
    texts = {
        "C": ("Set it up", "Press <key>A</key> now", "by one", ""),
        "de": ("Einrichten", "Jetzt <key>A</key>\n drücken", "von zwei", ""),
    }
    for language, parts in texts.items():
        folder = tmp_path / "usr/share/help" / language / "gnome-help"
        folder.mkdir(parents=True)
        (folder / "a.page").write_text(page.format(*parts))
        more = "<p>one more</p>" if language == "de" else ""
        (folder / "b.page").write_text(page.format(*parts[:3], more))
    assert list(parallel.gnome(tmp_path)) == [
        ("gnome/a", "Set it up", "Einrichten"),
        ("gnome/a", "Press A now", "Jetzt A drücken"),
    ]


def sword(folder, part, verses):
    """A module of one block."""
    block, places = b"", b""
    for verse in verses:
        places += struct.pack("<IIH", 0, len(block), len(verse.encode()))
        block += verse.encode()
    packed = zlib.compress(block)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.bzz").write_bytes(packed)
    (folder / f"{part}.bzs").write_bytes(struct.pack("<III", 0, len(packed), len(block)))
    (folder / f"{part}.bzv").write_bytes(places)


def test_verses_of_the_same_slot_are_paired(tmp_path):
    sword(tmp_path / "a", "ot", ["", "In <i>the</i> beginning <note>or: at</note> .", "“ Yes ”"])
    sword(tmp_path / "b", "ot", ["Génesis", "EN el\n principio.", ""])
    sword(tmp_path / "a", "nt", [*["x"] * 26])
    sword(tmp_path / "b", "nt", [*["y"] * 26])
    found = list(parallel.bible(tmp_path / "a", tmp_path / "b"))
    assert found[0] == ("ot0", "In the beginning.", "EN el principio.")
    assert [key for key, _, _ in found[1:]] == ["nt0"] * 25 + ["nt1"]


def test_pairs_are_dealt_out_without_overlap():
    rows = [(f"page{i // 3}", f"the sentence {i % 700}", f"der Satz {i % 700}") for i in range(999)]
    rows += [("page1", "too short", "kurz" * 40), ("page1", "the 5", "5 5")]
    splits = parallel.deal(rows)
    sources = {split: [source for source, _ in found] for split, found in splits.items()}
    every = [source for found in sources.values() for source in found]
    assert sorted(every) == sorted({source for _, source, _ in rows[:999]})  # each once
    assert min(len(found) for found in sources.values()) > 5


def test_other_texts_than_documented_are_told(tmp_path, monkeypatch, capsys):
    for name, word in (("sword-text-web", "one"), ("sword-text-sparv", "uno")):
        for part in ("ot", "nt"):
            sword(tmp_path / name, part, [f"{word} two number{i}" for i in range(900)])
    monkeypatch.setattr(parallel, "fetch", lambda package, cache: cache / package)
    arguments = ["enes", str(tmp_path / "out"), "--cache", str(tmp_path)]
    assert parallel.main(arguments) == 0
    shown = capsys.readouterr()
    assert re.search(r"train: \d+ pairs, \d.* English words, \w{12}, expected 290aaf", shown.out)
    assert "another text than the documented results" in shown.err
    source, target = read_pairs(tmp_path / "out", "test", ("en", "es"))
    assert len(source) == len(target) > 20
