"""Whatever a file holds: a rule, or a RuleError with places. Nothing else, and quickly."""

import json
import re
import time
from pathlib import Path

import pytest
from faulty import SOUND
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import Spoiler

from fwgen import RuleError, list_rules, load_rule
from fwgen.ir.verify import verify

SAMPLE, MANY = 250, 100_000
SECONDS = 3  # for one rule on a busy machine
WORDS = (
    "W z q k v beta g u omega phi kf t K V F M nu eps 0 1 2 3 -1 0.5 1e-6 1e999 K-1 2*K "
    "+ - * / ** @ % ( ) [ ] , : = == < > and or not : | > & ! ? ' \" # { } \n \n\n \t ; . .T "
    "exp( log( sum( max( norm( softmax( l2norm( layernorm( where( concat( stack( roll( flatten( "
    "outer( dot( diag( eye( size( row( col( prev( einsum( clamp( dpfp( elu1( favor_positive( "
    "for i in range( axis=0 axis=-1 nu=2 i \u03b1 \x00 __ lambda if else import name: inputs: "
    "state: update: output: feature_map: constants: params: scalar init: param dims:"
)
TOKENS = WORDS.split(" ")

ATOMS = "W z q k v beta g u omega kf t 1 2 0.5 nu eps W.T eye(K) size(V) y r"
UNARY = (
    "exp tanh norm sum mean max softmax l2norm layernorm row col diag flatten phi dpfp elu1 "
    "favor_positive square stop_gradient -"
)

texts = st.lists(st.sampled_from(TOKENS), max_size=12).map(" ".join)


@st.composite
def spoilt(draw: st.DrawFn) -> str:
    """A sound rule with a few pieces cut, doubled, moved or replaced."""
    names = draw(st.sampled_from([None, "delta", "performer", "delta_product", "fwm"]))
    text = SOUND if names is None else load_rule(names).to_yaml()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        text = text[:start] + draw(texts | st.text(max_size=3) | st.just("")) + text[end:]
    return text


def atoms() -> st.SearchStrategy[str]:
    return st.sampled_from(ATOMS.split())


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions around expressions: shapes fit or not, as it comes."""
    unary = st.sampled_from(UNARY.split())
    binary = st.sampled_from(["+", "-", "*", "/", "@"])
    called = st.sampled_from(["outer", "dot", "concat", "stack", "maximum", "roll"])
    ends = st.sampled_from(["[0]", "[1:3]", "[0:K]", "[-1]", ".T", " ** 2", "[0, 1]"])
    return (
        st.tuples(unary, inner).map(lambda p: f"{p[0]}({p[1]})")
        | st.tuples(inner, binary, inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
        | st.tuples(called, inner, inner).map(lambda p: f"{p[0]}({p[1]}, {p[2]})")
        | st.tuples(inner, ends).map(lambda p: f"({p[0]}){p[1]}")
        | st.tuples(inner, inner, inner).map(lambda p: f"where({p[0]} > 0, {p[1]}, {p[2]})")
        | inner.map(lambda e: f"concat({e} * i for i in range(1, 3))")
        | st.tuples(inner, inner).map(lambda p: f'einsum("ij,j->i", {p[0]}, {p[1]})')
    )


expressions = st.recursive(atoms(), grow, max_leaves=8)


def judge(text: str | bytes, folder: Path) -> bool:
    """Load a text; whether it is a rule."""
    path = folder / "fuzzed.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    start = time.process_time()
    try:
        rule = load_rule(path)
    except RuleError as error:
        message = str(error)
        assert re.match(r".*fuzzed\.yaml:\d+:\d+: error: \S", message), message
        assert len(message.encode()) < 40_000
        assert message.replace("\n", "").isprintable()
        for fault in error.diagnostics:
            assert fault.line >= 1 and fault.column >= 1
            assert fault.column <= max(1, len(fault.source) + 1) or "not shown" in fault.message
    else:
        verify(rule.step, "step")
        path.write_text(rule.to_yaml(), encoding="utf-8")
        assert load_rule(path).to_yaml() == rule.to_yaml()
        return True
    finally:
        assert time.process_time() - start < SECONDS
    return False


quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
few = settings(max_examples=60, deadline=None, suppress_health_check=quiet, derandomize=True)
many = settings(max_examples=50_000, deadline=None, suppress_health_check=quiet)


@few
@given(text=spoilt())
def test_spoilt_rules(text, tmp_path):
    judge(text, tmp_path)


@few
@given(expression=expressions)
def test_expressions(expression, tmp_path):
    judge(SOUND.replace("u * t", expression), tmp_path)


@few
@given(expression=expressions)
def test_map_bodies(expression, tmp_path):
    judge(SOUND.replace("exp(omega @ x)", expression.replace("q", "x")), tmp_path)


@few
@given(text=st.text(max_size=300) | st.binary(max_size=300))
def test_any_text(text, tmp_path):
    judge(text, tmp_path)


@settings(few, max_examples=25)
@given(doc=st.text(max_size=40), body=st.text(max_size=40), name=st.text(max_size=10))
def test_any_text_as_a_part(doc, body, name, tmp_path):
    """Quoted, so that it arrives as it is: in a text, a formula, a name, a size."""
    for old, new in (
        ("doc: A", f"doc: {json.dumps(doc)} #"),
        ("doc: A", f"doc: {json.dumps(doc, ensure_ascii=False)} #"),
        ("update: |", f"output: {json.dumps(body)}\nupdate: |"),
        ("beta: scalar", f"{json.dumps(name)}: scalar"),
        ("u: V", f"u: {json.dumps(name)}"),
    ):
        assert old in SOUND
        text = SOUND.replace(old, new, 1)
        judge(text.partition("output: |")[0] if "update" in old else text, tmp_path)


@pytest.mark.parametrize("start", range(0, SAMPLE, 50))
def test_mixed_rules(start, tmp_path):
    """Each text follows from its number: `Spoiler().text(n)` shows one again."""
    spoiler = Spoiler()
    for number in range(start, start + 50):
        judge(spoiler.text(number), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, MANY, 5000))
def test_many_mixed_rules(start, tmp_path):
    spoiler = Spoiler()
    faulty = []
    for number in range(start, start + 5000):
        try:
            judge(spoiler.text(number), tmp_path)
        except Exception as error:
            faulty.append((number, f"{type(error).__name__}: {error}"[:300]))
    assert not faulty, f"texts and what came of them: {faulty[:20]}"


@pytest.mark.slow
@many
@given(text=spoilt())
def test_many_spoilt_rules(text, tmp_path):
    judge(text, tmp_path)


@pytest.mark.slow
@many
@given(expression=expressions)
def test_many_expressions(expression, tmp_path):
    judge(SOUND.replace("u * t", expression), tmp_path)


def test_the_fuzz_meets_rules_and_faults(tmp_path):
    """The judge tells the two apart, and is not content with anything."""
    assert judge(SOUND, tmp_path)
    spoiler = Spoiler()
    kinds = [judge(spoiler.text(number), tmp_path) for number in range(60)]
    assert 1 <= sum(kinds) < 30 and spoiler.text(7) == Spoiler().text(7) != Spoiler(1).text(7)
    assert not judge(SOUND.replace("u * t", "nothing"), tmp_path)
    assert all(judge(load_rule(name).to_yaml(), tmp_path) for name in list_rules()[:3])
