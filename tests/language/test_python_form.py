"""A decorated function is a rule: read from its source, never run."""

# ruff: noqa: F821, F841 (the names of a rule are not those of Python)

from pathlib import Path

import pytest
from faulty import shown

import fwgen

DELTA = """\
name: written
doc: A delta rule.
inputs: {q: K, k: K, v: V, beta: scalar}
state: {W: [V, K]}
update: W = W + beta * outer(v - W @ k, k)
output: W @ q
"""


@fwgen.rule(
    inputs={"q": "K", "k": "K", "v": "V", "beta": "scalar"},
    state={"W": "V K"},
)
def written(q, k, v, beta):
    """A delta rule."""
    W = W + beta * outer(v - W @ k, k)
    return W @ q


@fwgen.rule(
    inputs={"q": "K", "k": ["n", "K"], "v": "V", "w": "3*D + 1"},
    params={"u": ("V",)},
    buffers={"c": "scalar"},
    constants={"n": 2, "eps": 1e-3},
    state={
        "W": {"dims": "V F", "init": 0.5},
        "z": {"dims": ["V"], "init": "param"},
        "d": "3*D + 1",
    },
    feature_map={
        "phi(x)": """
            r = relu(x)
            r / (sum(r) + eps)
        """,
        "psi": "dpfp(nu=2)",
    },
    name="other",
    doc="Said here.",
)
def full(q, k, v, w):
    # What comes first.
    for i in range(n):
        kf = phi(k[i])
        W = W + outer(
            v,
            concat(kf, psi(kf)),
        )

    z = z + u * c * v
    d = d + w
    qf = phi(q)
    return W @ concat(qf, psi(qf)) + z


def test_it_is_the_rule_of_the_file(tmp_path):
    path = tmp_path / "written.yaml"
    path.write_text(DELTA)
    rule = fwgen.load_rule(written)
    assert rule == fwgen.load_rule(path)
    assert rule.to_yaml() == fwgen.load_rule(path).to_yaml()
    assert rule.doc == "A delta rule."


def test_every_section(tmp_path):
    rule = fwgen.load_rule(full)
    assert (rule.name, rule.doc) == ("other", "Said here.")
    assert list(rule.inputs) == ["q", "k", "v", "w"] and list(rule.states) == ["W", "z", "d"]
    assert [str(d) for d in rule.states["W"]] == ["V", "5*K"]
    assert [s.init for s in rule.step.states] == [0.5, None, 0.0]
    path = tmp_path / "other.yaml"
    path.write_text(rule.to_yaml())
    assert fwgen.load_rule(path).to_yaml() == rule.to_yaml()
    assert len(rule.step.statements) == len(fwgen.load_rule(path).step.statements)
    assert fwgen.load_rule(full, set={"n": 3}).constants["n"] == 3


def refused(decorate) -> list:
    with pytest.raises(fwgen.RuleError) as error:
        decorate()
    assert "test_python_form.py:" in str(error.value)
    return shown(str(error.value))


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").split("\n")
    return next(n for n, line in enumerate(lines, 1) if text in line)


def test_faults_are_placed_in_the_python_file():
    def decorate():
        @fwgen.rule(
            inputs={"q": "K", "k": "K", "v": "V"},
            state={"W": "V 1.5"},
            feature_map={"phi(x)": "rellu(x)"},
        )
        def spoilt(q, k, v):
            W = W + outer(v, phi(kk))
            return W @ phi(q)

    size, function, name = refused(decorate)
    assert (size.line, size.marked) == (line_of("1.5"), "1.5")
    assert (function.line, function.marked) == (line_of("rellu"), "rellu")
    assert (name.line, name.marked) == (line_of("phi(kk)"), "kk")


def test_parameters_are_the_inputs():
    def decorate():
        @fwgen.rule(inputs={"q": "K", "k": "K"}, state={"W": "K"})
        def spoilt(k, q):
            W = W + q * k
            return W

    (fault,) = refused(decorate)
    assert "in order" in fault.message


def test_the_body_ends_with_a_return():
    def decorate():
        @fwgen.rule(inputs={"q": "K"}, state={"W": "K"})
        def spoilt(q):
            W = W + q

    (fault,) = refused(decorate)
    assert "return" in fault.message


def test_python_beyond_the_language_is_refused():
    def decorate():
        @fwgen.rule(inputs={"q": "K"}, state={"W": "K"})
        def spoilt(q):
            while True:
                W = W + q
            return W

    (fault,) = refused(decorate)
    assert "`while`" in fault.message


def test_source_that_is_not_there():
    names: dict = {}
    exec("def bare(q):\n    W = W + q\n    return W\n", names)
    with pytest.raises(fwgen.RuleError, match="source"):
        fwgen.rule(inputs={"q": "K"}, state={"W": "K"})(names["bare"])


def test_what_is_no_rule():
    with pytest.raises(TypeError):
        fwgen.load_rule(3)
    with pytest.raises(TypeError):
        fwgen.load_rule(line_of)


def plain(q):
    """A function to decorate wrongly."""
    W = W + q
    return W


SECTIONS = {"inputs": {"q": "K"}, "state": {"W": "K"}}


@pytest.mark.parametrize(
    "decorate, words",
    [
        (fwgen.rule, "takes its sections by keyword: write `@fwgen.rule(inputs={…}, state={…})`"),
        (lambda f: fwgen.rule({"q": "K"}, {"W": "K"})(f), "by keyword"),
        (lambda f: fwgen.rule(inputs={"q": "K"})(f), "lacks `state`: write `@fwgen.rule("),
        (lambda f: fwgen.rule(**SECTIONS, param={"u": "K"})(f), "did you mean `params`?"),
        (lambda f: fwgen.rule(**SECTIONS, update="W = W")(f), "the body of the function is the up"),
        (lambda f: fwgen.rule(**SECTIONS, foo=3)(f), "no section `foo`; write `@fwgen.rule("),
        (lambda f: fwgen.rule(**SECTIONS)(None), "decorates a function, not None"),
        (lambda f: fwgen.rule(**SECTIONS)(Path), "decorates a function, not <class"),
    ],
)
def test_a_decorator_that_is_used_wrongly(decorate, words):
    with pytest.raises(TypeError) as error:
        decorate(plain)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"inputs": ["q"]},
            "inputs: expected a dict by name, such as {'q': 'K', 'beta': 'scalar'}",
        ),
        ({"inputs": "q: K"}, "found 'q: K'"),
        ({"state": "V K"}, "state: expected a dict by name, such as {'W': 'V K'}, found 'V K'"),
        ({"inputs": {1: "K"}}, "inputs: expected names as keys, found 1"),
        ({"feature_map": "phi"}, "feature_map: expected a dict"),
        ({"name": 3}, "name: expected a text, found 3"),
        ({"doc": 3}, "doc: expected a text, found 3"),
    ],
)
def test_sections_of_another_kind(changes, words):
    with pytest.raises(fwgen.ArgumentError) as error:
        fwgen.rule(**{**SECTIONS, **changes})(plain)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"inputs": {"q": None}}, "None"),
        ({"inputs": {"q": 2.5}}, "2.5"),
        ({"inputs": {"q": {"dims": "K"}}}, "dims are a name"),
        ({"constants": {"c": "2"}}, "finite number"),
        ({"constants": {"c": True}}, "finite number"),
        ({"feature_map": {"phi": None}}, "constant"),
    ],
)
def test_values_of_another_kind_are_placed(changes, words):
    with pytest.raises(fwgen.RuleError, match=r"test_python_form\.py:\d+:\d+: error") as error:
        fwgen.rule(**{**SECTIONS, **changes})(plain)
    assert words in str(error.value)


def test_constants_of_any_numeric_type():
    np = pytest.importorskip("numpy")
    constants = {"a": np.float64(0.5), "b": np.int32(2), "c": 3}

    @fwgen.rule(inputs={"q": "K"}, state={"W": "K"}, constants=constants)
    def numbers(q):
        W = a * W + b * c * q
        return W

    assert fwgen.load_rule(numbers).constants == {"a": 0.5, "b": 2, "c": 3}


def test_arguments_that_take_more_than_the_inputs():
    def decorate():
        @fwgen.rule(inputs={"q": "K"}, state={"W": "K"})
        def spoilt(q, *rest):
            W = W + q
            return W

    (fault,) = refused(decorate)
    assert "are not its inputs (q)" in fault.message


def test_a_lambda_is_no_rule():
    (fault,) = refused(lambda: fwgen.rule(**SECTIONS)(lambda q: q))
    assert "`def`" in fault.message
