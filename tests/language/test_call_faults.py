"""Arguments that do not exist or are of another kind: every function names them."""

import inspect
import re

import pytest
import torch

import fwgen
from fwgen import ArgumentError, RuleError

KINDS = {
    "number": 3,
    "fraction": 1.5,
    "bool": True,
    "text": "text",
    "bytes": b"bytes",
    "list": [1.0],
    "set": {1},
    "function": len,
    "class": dict,
    "vector": torch.ones(2),
    "dict": {"W": 3},
    "numbers as keys": {1: torch.ones(2)},
}
FITS = {"output_final_state": "bool", "position": "number", "B": "number", "H": "number"}
"""The one of KINDS that an argument may be of."""
B, T, H, K, V = 1, 3, 2, 4, 5
CALL = {"q": (B, T, H, K), "k": (B, T, H, K), "v": (B, T, H, V), "beta": (B, T, H)}
STEP = {name: (shape[0], *shape[2:]) for name, shape in CALL.items()}
LEARNED = """\
name: learned
inputs: {q: K, k: K, v: V}
state: {W: {dims: [V, K], init: param}}
update: W = W + outer(v, k)
output: W @ q
"""
CONSTANT = """\
name: constant
constants: {nu: 1}
inputs: {q: K, k: K, v: V}
state: {W: [V, F]}
feature_map: {phi: nu * x}
update: W = W + outer(v, phi(k))
output: W @ phi(q)
"""


@pytest.fixture(scope="module")
def op():
    return fwgen.compile("deltanet")


def arguments(function):
    """The names of a function's own arguments."""
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind not in many]


def refusal(call, name):
    """What `call` says of an argument, whose name stands first."""
    with pytest.raises(ArgumentError) as error:
        call()
    message = str(error.value)
    assert re.match(rf"{name}\b.*: ", message), message
    return message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["__call__", "reference", "plan", "step"])
def test_every_argument_of_a_call(op, method, kind):
    shapes = STEP if method == "step" else CALL
    names = {*arguments(op.step if method == "step" else op.__call__), *shapes}
    assert len(names) == (9 if method == "step" else 13)
    for name in names - {"backend" if method == "reference" else ""}:
        if FITS.get(name) != kind:
            given = {n: torch.randn(shape) for n, shape in shapes.items()} | {name: KINDS[kind]}
            message = refusal(lambda given=given: getattr(op, method)(**given), name)
            assert "expected" in message


@pytest.mark.parametrize("kind", KINDS)
def test_every_argument_of_init_state(kind, tmp_path):
    path = tmp_path / "learned.yaml"
    path.write_text(LEARNED)
    op = fwgen.compile(path)
    sound = {"B": B, "H": H, "sizes": {"K": K, "V": V}, "params": {"W": torch.ones(H, V, K)}}
    sound |= {"dtype": torch.float32, "device": "cpu"}
    assert [*sound] == arguments(op.init_state)
    assert op.init_state(**sound)["W"].tolist() == torch.ones(B, H, V, K).tolist()
    for name in sound:
        if FITS.get(name) != kind:
            refusal(lambda name=name: op.init_state(**sound | {name: KINDS[kind]}), name)
    for name, key in (("sizes", "K"), ("params", "W")):
        if (name, kind) != ("sizes", "number"):
            changed = sound | {name: sound[name] | {key: KINDS[kind]}}
            refusal(lambda changed=changed: op.init_state(**changed), name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_argument_of_random_features(kind):
    function = fwgen.features.orthogonal_random_features
    sound = {"H": 2, "M": 3, "K": 4, "generator": None, "regularized": False}
    assert [*sound] == arguments(function) and function(**sound).shape == (2, 3, 4)
    fits = {"H": "number", "M": "number", "K": "number", "regularized": "bool"}
    for name in sound:
        if fits.get(name) != kind:
            message = refusal(lambda name=name: function(**sound | {name: KINDS[kind]}), name)
            assert "expected" in message and "found" in message
    for name in ("H", "M", "K"):
        assert "found 0" in refusal(lambda name=name: function(**sound | {name: 0}), name)


def test_counts_of_init_state(op):
    sound = {"B": B, "H": H, "sizes": {"K": K, "V": V}}
    assert op.init_state(**sound | {"B": 0, "H": 0})["W"].shape == (0, 0, V, K)
    for name in ("B", "H"):
        assert "-1" in refusal(lambda name=name: op.init_state(**sound | {name: -1}), name)
    for size in (0, -1):
        refusal(lambda size=size: op.init_state(B, H, {"K": size, "V": V}), "sizes")
    assert "nowhere" in refusal(lambda: op.init_state(**sound, device="nowhere"), "device")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", [fwgen.compile, fwgen.load_rule])
def test_every_argument_of_loading(function, kind):
    assert arguments(function) == ["source", "set", "maps"]
    for name in ("set", "maps"):
        if kind == "dict":
            with pytest.raises((ArgumentError, RuleError), match=r"`W`|maps\['W'\]"):
                function("sum", **{name: KINDS[kind]})
        else:
            refusal(lambda name=name: function("sum", **{name: KINDS[kind]}), name)
    if kind == "text":
        with pytest.raises(RuleError, match="there is no rule `text`"):
            function("text")
    else:
        with pytest.raises(ArgumentError, match="rule"):
            function(KINDS[kind])


@pytest.mark.parametrize(
    "name, words",
    [
        ("nu", "constants are replaced by `set={'nu': 3}`"),
        ("phi", "feature maps are replaced by `maps={'phi': 3}`"),
        ("map", "did you mean `maps`?"),
        ("sets", "did you mean `set`?"),
        ("ph", "did you mean `phi`?"),
        ("backend", "the compiled rule takes it: `op = fwgen.compile(…)`, `op(…, backend=…)`"),
        ("chunk_size", "the compiled rule takes it"),
        ("drop", "it takes `set={…}` for constants and `maps={…}` for feature maps"),
    ],
)
@pytest.mark.parametrize("function", [fwgen.compile, fwgen.load_rule])
def test_keywords_that_do_not_exist(function, name, words, tmp_path):
    path = tmp_path / "constant.yaml"
    path.write_text(CONSTANT)
    for source in (path, fwgen.load_rule(path)):
        for kind in (ArgumentError, TypeError):  # the latter is what Python raises
            with pytest.raises(kind) as error:
                function(source, **{name: 3})
            message = str(error.value)
            assert message.startswith(f"`fwgen.{function.__name__}` has no argument `{name}`\n")
            assert words in message


def test_a_keyword_that_does_not_exist_beside_a_faulty_rule():
    """The call is wrong whatever the rule is."""
    for source in ("no_such_rule", 3):
        with pytest.raises(ArgumentError, match="no argument `drop`"):
            fwgen.compile(source, drop=0.1)


def test_a_name_under_the_wrong_one_of_set_and_maps(tmp_path):
    path = tmp_path / "constant.yaml"
    path.write_text(CONSTANT)
    with pytest.raises(RuleError, match="hint: `phi` is a feature map: `--map phi=EXPR`"):
        fwgen.load_rule(path, set={"phi": 2})
    with pytest.raises(RuleError, match="hint: `nu` is a constant: `--set nu=NUMBER`"):
        fwgen.load_rule(path, maps={"nu": "x"})
