"""`to_yaml` is a fixed point with the same meaning; the hash follows the content only."""

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import yaml
from faulty import SOUND

import fwgen
from fwgen import list_rules, load_rule

ODD = """\
name: odd
doc: "Quotes: \\"a\\", a # sign,\\n  and lines: \\u00e9."
constants: {on: 1e-30, n: 3, m: -2.50}
inputs: {no: [n, K], null: K, y: scalar}
params: {true: 2*K + 1}
state:
  W: {dims: [K, K], init: -1e38}
  start: {dims: [K], init: param}
  s: scalar
feature_map:
  phi(u, v): |
    # a comment
    a = u * v

    a + m
  psi: softmax
  chi: |
    relu(
        x)
update: |
  W = on * W + outer(phi(null, y), psi(null))  # why
  start = start + chi(no[0])
  s = s + y
output: 'concat(W @ start, true * s)'
"""


def again(rule, folder):
    path = folder / "again.yaml"
    path.write_text(rule.to_yaml(), encoding="utf-8")
    return load_rule(path)


def meaning(rule):
    """The step without line numbers."""
    statements = [(s.target, s.index, s.body, s.over, s.reduce) for s in rule.step.statements]
    return rule.step.arrays, statements, rule.step.states, rule.step.output


@pytest.mark.parametrize("name", list_rules())
def test_shipped_rules_round_trip(name, tmp_path):
    rule = load_rule(name)
    twin = again(rule, tmp_path)
    assert twin.to_yaml() == rule.to_yaml()
    assert twin.hash == rule.hash and twin == rule and hash(twin) == hash(rule)
    assert meaning(twin) == meaning(rule)


@pytest.mark.parametrize("text", [SOUND, ODD], ids=["sound", "odd"])
def test_written_rules_round_trip(text, tmp_path):
    path = tmp_path / "first.yaml"
    path.write_text(text, encoding="utf-8")
    rule = load_rule(path)
    twin = again(rule, tmp_path)
    assert twin.to_yaml() == rule.to_yaml()
    assert meaning(twin) == meaning(rule)
    assert (twin.doc, twin.constants) == (rule.doc, rule.constants)


def test_other_readers_of_yaml_see_the_same(tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text(ODD, encoding="utf-8")
    rule = load_rule(path)
    document = yaml.safe_load(rule.to_yaml())
    assert list(document["inputs"]) == list(rule.inputs)
    assert list(document["state"]) == list(rule.states)
    assert document["doc"] == rule.doc
    assert document["update"].strip() == rule.update.strip()


@pytest.mark.parametrize(
    "changes",
    [
        {"set": {"nu": 3}},
        {"maps": {"phi": "elu1"}},
        {"maps": {"phi": "sum_normalize(dpfp(nu=nu), eps=eps)"}},
        {"maps": {"phi": "dpfp(nu=nu)"}, "set": {"nu": 3}},
    ],
)
def test_replacements_are_in_the_text(changes, tmp_path):
    path = tmp_path / "sound.yaml"
    path.write_text(SOUND)
    plain, rule = load_rule(path), load_rule(path, **changes)
    twin = again(rule, tmp_path)
    assert twin.to_yaml() == rule.to_yaml() and meaning(twin) == meaning(rule)
    assert rule.hash == twin.hash != plain.hash
    assert load_rule(plain, **changes).to_yaml() == rule.to_yaml()


def test_the_argument_of_a_replaced_map_keeps_its_name(tmp_path):
    path = tmp_path / "named.yaml"
    path.write_text(SOUND.replace("phi(x)", "phi(u_)").replace("omega @ x", "omega @ u_"))
    rule = load_rule(path, maps={"phi": "concat(u_, -u_)"})
    assert again(rule, tmp_path).to_yaml() == rule.to_yaml()
    short = load_rule(path, maps={"phi": "dpfp(nu=2)"})
    assert meaning(again(short, tmp_path)) == meaning(short)


def test_the_hash_does_not_follow_places_and_layout(tmp_path):
    one, two = tmp_path / "one.yaml", tmp_path / "deeper" / "two.yaml"
    two.parent.mkdir()
    one.write_text(SOUND)
    two.write_text("# moved\n" + SOUND.replace("[V, F]", "[ V,F ]"))
    assert load_rule(one).hash == load_rule(two).hash
    two.write_text(SOUND.replace("eps: 1e-3", "eps: 1e-4"))
    assert load_rule(one).hash != load_rule(two).hash


def test_the_hash_and_the_names_do_not_follow_the_hash_seed():
    code = (
        "from fwgen import load_rule\n"
        "from fwgen.language import lower\n"
        "for name in ('delta', 'performer', 'leaformer'):\n"
        "    rule = load_rule(name)\n"
        "    print(rule.hash, lower(rule))\n"
    )
    outputs = set()
    for seed in ("0", "1", "17"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1


def test_loading_takes_rules_paths_and_names(tmp_path):
    path = tmp_path / "sound.yaml"
    path.write_text(SOUND)
    rule = load_rule(path)
    assert load_rule(rule) is rule
    assert load_rule(str(path)) == rule
    assert load_rule("sum").name == "sum"
    assert {"sum", "delta", "gated_delta"} <= set(list_rules())
    assert {"dpfp", "elu1", "l2norm"} <= set(fwgen.list_feature_maps())


@pytest.mark.parametrize(
    "name", ["gated_delte", "no_such.yaml", "./gone", "", ".", "a\0b", "x" * 5000]
)
def test_what_is_not_there_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fwgen.RuleError) as error:
        load_rule(name)
    assert type(error.value).__name__ == "RuleNotFound"
    shown = name.replace("\0", "\\x00") if len(name) < 200 else name[:100]
    assert f"`{shown}" in str(error.value) and len(str(error.value)) < 400
    if name == "gated_delte":
        assert "did you mean `gated_delta`?" in str(error.value)


def test_a_file_wins_over_a_shipped_name_only_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sum.yaml").write_text(SOUND)
    assert load_rule("sum").name == "sum"
    assert load_rule("sum.yaml").name == "sound"


@pytest.mark.parametrize("text", [SOUND, "{name: sound, inputs: {q: K}}", "\n# a rule\n" + SOUND])
def test_a_text_is_no_path(text):
    with pytest.raises(fwgen.RuleError, match="is no path or name, but a text") as error:
        fwgen.compile(text)
    assert "hint: write the text to a file" in str(error.value) and len(str(error.value)) < 400


def plain(q):
    """A function that is not decorated."""


@pytest.mark.parametrize(
    "source, words",
    [
        (SOUND.encode(), "a rule is a path, a name, a Rule or a decorated function, not b'name"),
        (None, "not None"),
        ({"name": "sound"}, "not {'name': 'sound'}"),
        (plain, "`plain` is not decorated as a rule: put `@fwgen.rule("),
        (type("Compiled", (), {"rule": load_rule("sum")})(), "its `.rule` is the Rule"),
    ],
)
def test_what_no_rule_can_be_read_from(source, words):
    with pytest.raises(TypeError) as error:
        load_rule(source)
    assert words in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"maps": "phi=relu(x)"}, "maps: expected a dict by name, such as {'phi': 'elu(x) + 1'}"),
        ({"maps": ["phi=relu(x)"]}, "found ['phi=relu(x)']"),
        ({"maps": {3: "relu(x)"}}, "maps: expected names as keys, found 3"),
        ({"maps": {"phi": None}}, "maps['phi']: expected a formula as text"),
        ({"maps": {"phi": plain}}, "such as 'elu(x) + 1', found <function pla"),
        ({"maps": {"phi": 3}}, "found 3"),
        ({"set": "nu=2"}, "set: expected a dict by name, such as {'nu': 2}, found 'nu=2'"),
        ({"set": [("nu", 2)]}, "found [('nu', 2)]"),
        ({"set": {3: 2}}, "set: expected names as keys, found 3"),
    ],
)
def test_replacements_of_another_kind(changes, words):
    for function in (load_rule, fwgen.compile):
        with pytest.raises(fwgen.ArgumentError) as error:
            function("sum", **changes)
        assert words in str(error.value)


@pytest.mark.parametrize("value", ["2", None, True, float("nan"), float("inf"), 10**400, [2], 2j])
def test_a_constant_is_a_finite_number(value, tmp_path):
    path = tmp_path / "sound.yaml"
    path.write_text(SOUND)
    with pytest.raises(
        fwgen.RuleError, match="<set nu>:1:1: error: the constant `nu` is no finite"
    ):
        load_rule(path, set={"nu": value})


@pytest.mark.parametrize("value", [3, 3.0, np.int64(3), np.float32(3), Fraction(3)])
def test_numbers_of_any_type_are_constants(value, tmp_path):
    path = tmp_path / "sound.yaml"
    path.write_text(SOUND)
    rule = load_rule(path, set={"nu": value})
    assert rule.constants["nu"] == 3 and type(rule.constants["nu"]) in (int, float)
    assert rule.hash in {load_rule(path, set={"nu": n}).hash for n in (3, 3.0)}


def test_empty_replacements_replace_nothing():
    assert load_rule("sum", set=None, maps=None) == load_rule("sum", set={}, maps={})
