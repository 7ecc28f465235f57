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
    assert fwgen.load_rule(full, constants={"n": 3}).constants["n"] == 3


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
