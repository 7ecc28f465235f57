"""The loader: every scalar is a text with a place, and everything else of YAML is refused."""

import time

import pytest
from faulty import SOUND, faults, spoil

from fwgen import RuleError, load_rule
from fwgen.language import yaml_file
from fwgen.language.source import Report, SourceFile, Text

REFUSED = {
    "tab": ("  q: K", "\tq: K", 5, 1, "tab"),
    "tab inside a line": ("v - W", "v -\tW", 23, 27, "tab"),
    "anchor": ("  q: K", "  q: &a K", 5, 6, "anchor"),
    "alias": ("  q: K", "  q: *a", 5, 6, "alias"),
    "tag": ("  q: K", "  q: !!str K", 5, 6, "tag"),
    "python tag": ("A delta rule", "!!python/name:os.system x", 2, 6, "tag"),
    "merge key": ("  q: K", "  <<: {q: K}", 5, 3, "merge"),
    "folded": ("update: |", "update: >", 21, 9, "folded"),
    "two documents": ("inputs:", "---\ninputs:", 4, 1, "one document"),
    "directive": ("name:", "%YAML 1.2\n---\nname:", 1, None, "directive"),
    "plain over two lines": ("of its own.", "of its\n  own.", 2, 6, "on its line"),
    "key that is a list": ("  q: K", "  [q]: K", 5, 3, "one word"),
    "control character": ("of its own", "of\x07its own", 2, None, "U+0007"),
    "line separator": ("of its own", "of\u2028its own", 2, None, "U+2028"),
    "bad indentation": ("  k: K", " k: K", 6, None, "not YAML"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path):
    old, new, line, column, word = REFUSED[name]
    (fault,) = faults(spoil(old, new), tmp_path)
    assert fault.line == line and word in fault.message
    assert column is None or fault.column == column


def test_a_formula_that_yaml_reads_otherwise_gets_a_hint(tmp_path):
    text = SOUND[: SOUND.index("output:")] + "output: {W @ phi(q): 1}\n"
    (fault,) = faults(text, tmp_path)
    assert "quote it" in fault.hint and fault.line == 25


@pytest.mark.parametrize("content", ["", "word", "- a\n- b\n", "1", "{}", "# nothing\n"])
def test_not_a_rule(content, tmp_path):
    assert faults(content, tmp_path)[0].line == 1


def test_not_text(tmp_path):
    path = tmp_path / "binary.yaml"
    path.write_bytes(SOUND.encode().replace(b"A delta", b"A \xff\xfe"))
    with pytest.raises(RuleError, match=r"binary\.yaml:2:8: error: .*UTF-8"):
        load_rule(path)


@pytest.mark.parametrize("size, fits", [(65536, True), (65537, False)])
def test_size_limit(size, fits, tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text(SOUND + "#" * (size - len(SOUND.encode()) - 1) + "\n", encoding="utf-8")
    assert path.stat().st_size == size
    if fits:
        load_rule(path)
    else:
        with pytest.raises(RuleError, match="65536"):
            load_rule(path)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + SOUND,
        "---\n" + SOUND,
        SOUND.replace("\n", "\r\n"),
        SOUND.replace("update: |", "update: |-"),
        SOUND.replace("update: |", "update: |  # in order"),
        SOUND.replace("K\n  k", "'K'\n  k").replace("  q: 'K'", "  \"q\": 'K'"),
        SOUND.replace("update: |\n", "update: |2\n"),
        SOUND + "\n\n# the end\n",
        SOUND.replace("inputs:", "params: {}\ninputs:", 1)
        .replace("params:\n  u: V\n", "")
        .replace("+ u * t", "+ v * t"),
    ],
    ids=range(9),
)
def test_ways_to_write_it(text, tmp_path):
    path = tmp_path / "sound.yaml"
    path.write_bytes(text.encode())
    assert load_rule(path).name == "sound"


def test_words_of_yaml_are_names(tmp_path):
    path = tmp_path / "words.yaml"
    path.write_text(
        "name: words\nconstants: {off: 1e-2, null: -1E2}\ninputs: {on: yes, no: true}\n"
        "state: {~: yes}\nupdate: |\n  x = on\noutput: on\n"
    )
    with pytest.raises(RuleError, match=r"3:23: error|`~` is no name"):
        load_rule(path)
    path.write_text(path.read_text().replace("true", "yes").replace("~", "y").replace("x =", "y ="))
    rule = load_rule(path)
    assert list(rule.inputs) == ["on", "no"] and rule.constants == {"off": 0.01, "null": -100.0}
    assert [str(dim) for dim in rule.inputs["on"]] == ["yes"]


def places(line: str) -> list[str]:
    """The character of the line at the place of every character of its first value."""
    node = yaml_file.read(SourceFile.of("x", line), Report()).entries[0][1]
    assert isinstance(node, Text)
    spans = [node.span(0, i, i + 1) for i in range(len(node.value))]
    return [line[span.column - 1 : span.column - 1 + span.width] for span in spans]


@pytest.mark.parametrize(
    "line, characters",
    [
        ("a: b @ c", "b @ c"),
        ("a:    'b @ c'", "b @ c"),
        ('a: "b @ c"', "b @ c"),
        ("a: 'it''s'", "it's"),
        (r'a: "b\"c\\d\x41e"', r"b\c\d\e"),
    ],
)
def test_every_character_knows_its_place(line, characters):
    assert "".join(places(line)) == characters


def test_a_block_knows_its_lines():
    file = SourceFile.of("x", "a: |\n\n    first\n      second\n  # comment\nb: c\n")
    node = yaml_file.read(file, Report()).entries[0][1]
    assert isinstance(node, Text)
    for number, line in enumerate(node.value.split("\n")):
        if line.strip():
            span = node.span(number)
            assert span.source[span.column - 1 :].strip() == line.strip()


DEEP = {
    "lists": 20000 * "[",
    "mappings": 9000 * "{a: ",
    "block lists": "\n" + 20000 * "- ",
    "keys": 9000 * "? ",
    "long": "'" + 60000 * "x" + "'",
}


@pytest.mark.parametrize("name", DEEP)
def test_hostile_yaml_is_quick(name, tmp_path):
    text = SOUND.replace(
        "A delta rule with a decay, a bonus and a feature map of its own.", DEEP[name]
    )
    path = tmp_path / "deep.yaml"
    path.write_text(text)
    start = time.perf_counter()
    if name == "long":
        load_rule(path)
    else:
        with pytest.raises(RuleError, match=r"deep\.yaml:\d+:\d+: error"):
            load_rule(path)
    assert time.perf_counter() - start < 3
