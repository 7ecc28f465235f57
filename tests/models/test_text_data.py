"""Corpora, tokenizers and streams."""

import bz2
import struct
import zlib
from pathlib import Path

import pytest
import torch

import fwgen
from fwgen.models.data import debian, prose
from fwgen.models.data.text import (
    Bpe,
    Bytes,
    Streams,
    Words,
    learn_tokenizer,
    read_split,
    tokenizer_from,
)

AUSTEN = Path(__file__).parent / "data" / "austen.txt"
ODD = "Ein Käfer\t— naïve \u2028 10 € 日本語 🙂\n\n  two  spaces \r end"


# --- corpora


def test_a_file_is_cut_between_lines_without_loss():
    parts = [read_split(AUSTEN, split) for split in ("train", "valid", "test")]
    assert "".join(parts) == AUSTEN.read_text("utf-8")
    assert all(part.endswith("\n") for part in parts)
    assert len(parts[0]) / sum(map(len, parts)) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("name", ["{}.txt", "wiki.{}.tokens", "wiki.{}.raw"])
def test_a_folder_holds_a_file_per_split(name, tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / name.format(split)).write_text(split)
    assert read_split(tmp_path, "valid") == "valid"


def test_missing_and_foreign_files_are_told(tmp_path):
    with pytest.raises(fwgen.ArgumentError, match=r"train\.txt, wiki\.train\.tokens"):
        read_split(tmp_path, "train")
    with pytest.raises(fwgen.ArgumentError, match="found no"):
        read_split(tmp_path / "nothing", "train")
    with pytest.raises(fwgen.ArgumentError, match="split: expected one of train"):
        read_split(AUSTEN, "dev")
    (tmp_path / "train.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(fwgen.ArgumentError, match="not UTF-8"):
        read_split(tmp_path, "train")


# --- tokenizers


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@pytest.mark.parametrize("text", [ODD, "", "\n", "it is a truth\n" * 3])
def test_bytes_and_bpe_are_lossless_and_rebuilt_from_their_text(kind, text):
    tokenizer = learn_tokenizer(kind, read_split(AUSTEN, "train"), 300)
    again = tokenizer_from(tokenizer.to_text())
    tokens = tokenizer.encode(text)
    assert again.decode(tokens.tolist()) == text
    assert torch.equal(again.encode(text), tokens)
    assert again.vocab == tokenizer.vocab == (256 if kind == "bytes" else 300)
    assert tokenizer.words(tokens.tolist()) == len(text.split())
    pieces = "".join(tokenizer.decode([token]) for token in tokens.tolist())
    assert pieces == text or not text.isascii()


def test_bpe_merges_what_is_frequent():
    tokenizer = Bpe.learn("the cat the dog the hen " * 50, 270)
    assert len(tokenizer.encode("the the")) < len(Bytes().encode("the the"))
    with pytest.raises(fwgen.ArgumentError, match="vocab: expected at least 256"):
        Bpe.learn("a", 10)


def test_words_are_numbered_by_frequency_and_lines_have_ends():
    tokenizer = Words.learn("b a b\nb c a\n")
    assert tokenizer.list[:2] == ["b", "a"]
    assert set(tokenizer.list) == {"a", "b", "c", "<eos>", "<unk>"}
    tokens = tokenizer.encode("c b\n\nzebra")
    assert tokenizer.decode(tokens.tolist()) == "c b \n\n<unk> "
    assert tokenizer.words(tokens.tolist()) == 5
    assert tokenizer_from(tokenizer.to_text()).list == tokenizer.list


def test_an_unknown_tokenizer_is_refused():
    with pytest.raises(fwgen.ArgumentError, match="bytes, words or bpe"):
        learn_tokenizer("letters", "a", 10)


# --- streams


def streams(count=41, batch=3, length=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Streams(torch.arange(count), batch, length, generator, "cpu")


def test_rows_are_contiguous_and_targets_are_the_next_token():
    data, before = streams(), None
    for _ in range(20):
        x, y, first = data.next()
        assert x.shape == y.shape == (3, 4)
        assert torch.equal(y, x + 1)
        assert torch.equal(x // 13, torch.tensor([[0], [1], [2]]).expand(3, 4))
        assert torch.equal(x - x[:, :1], torch.arange(4).expand(3, 4))
        if before is None or first:
            assert first
        else:
            assert torch.equal(x[:, 0], before[:, -1] + 1)
        before = x


def test_passes_start_at_different_offsets():
    data = streams(1001, 1, 8)
    starts = {int(x[0, 0]) for x, _, first in (data.next() for _ in range(2000)) if first}
    assert len(starts) > 4
    assert max(starts) <= 8


def test_streams_go_on_where_they_were():
    whole = streams()
    for _ in range(5):
        whole.next()
    state, numbers = whole.state(), whole.generator.get_state()
    again = streams(seed=9)
    again.load_state(state)
    again.generator.set_state(numbers)
    for _ in range(12):
        for a, b in zip(whole.next(), again.next(), strict=True):
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_a_text_that_is_too_short_is_told():
    with pytest.raises(fwgen.ArgumentError, match="need 13 tokens, the training text has 12"):
        streams(12)


# --- the corpus of prose


def r_vector(lines, version):
    head = b"X\n\0\0\0" + bytes([version]) + bytes(8)
    if version == 3:
        head += struct.pack(">I", 5) + b"UTF-8"
    body = b"".join(struct.pack(">Ii", 9, len(line.encode())) + line.encode() for line in lines)
    return head + struct.pack(">II", 16, len(lines)) + body


def test_novels_are_read_from_the_data_file(tmp_path):
    folder = tmp_path / "usr" / "janeaustenr" / "data"
    folder.mkdir(parents=True)
    book = ["CHAPTER 1", "", *(f"Line {i} of the café." for i in range(120))]
    blob = b""
    for vector, packed in (
        (r_vector(["short"], 2), zlib.compress),
        (r_vector(book, 2), zlib.compress),
        (r_vector(book[::-1], 3), lambda data: b"2" + bz2.compress(data)),
    ):
        blob += struct.pack(">I", len(vector)) + packed(vector)
    (folder / "Rdata.rdb").write_bytes(blob)
    text = prose.austen(tmp_path)
    assert text == "\n".join(book) + "\n\f\n" + "\n".join(book[::-1]) + "\n\f\n"
    ((key, chapter),) = list(prose.documents("austen", "\n".join(book)))
    assert key == "austen/0"
    assert chapter.startswith("CHAPTER 1\n\nLine 0 of the café. Line 1")


def test_the_commentary_is_read_a_chapter_a_line(tmp_path):
    chapters = [zlib.compress(f"<p>Psalm {i} &amp;\n more</p>".encode()) for i in range(2)]
    index, place = b"", 0
    for chapter in chapters:
        index += struct.pack("<III", place, len(chapter), 0)
        place += len(chapter)
    (tmp_path / "ot.czs").write_bytes(index)
    (tmp_path / "ot.czz").write_bytes(b"".join(chapters))
    assert prose.tdavid(tmp_path) == "Psalm 0 & more\nPsalm 1 & more\n"


def test_splits_are_dealt_out_by_hash():
    splits = [prose.split_of(f"austen/{i}") for i in range(2000)]
    assert 60 < splits.count("test") < 140
    assert 60 < splits.count("valid") < 140
    assert prose.split_of("austen/0") == splits[0]


def test_what_is_missing_for_a_package_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fwgen.UnsupportedError, match="no apt-get here"):
        debian.fetch("r-cran-janeaustenr", tmp_path)
    assert prose.main([str(tmp_path / "out"), "--cache", str(tmp_path)]) == 1
    assert "no apt-get here" in capsys.readouterr().err
