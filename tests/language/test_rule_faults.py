"""Every fault of a rule: one message, at its place, over its text."""

import itertools
import tempfile
from functools import cache
from pathlib import Path

import pytest
from faulty import SOUND, faults, spoil

from fwgen import load_rule

# What is changed, where the fault is, what the caret marks, a word of the message.
FAULTS = {
    "unknown name": ("v - W", "vv - W", 23, "vv", "not defined"),
    "unknown name in a map": ("omega @ x", "omegas @ x", 19, "omegas", "not defined"),
    "an input in a map": ("omega @ x", "omega @ q", 19, "q", "not defined"),
    "read too early": ("phi(k * exp(g))", "phi(k * y)", 22, "y", "before it is assigned"),
    "unknown function": ("outer(v", "outter(v", 23, "outter", "no function"),
    "a value called": ("dot(z", "beta(z", 27, "beta", "cannot be called"),
    "a function not called": ("sum(r)", "sum", 20, "sum", "not defined"),
    "too many arguments": ("sum(r)", "sum(r, 0, 1)", 20, "sum(r, 0, 1)", "takes 2"),
    "too few arguments": ("outer(v - W @ kf, kf)", "outer(v)", 23, "outer(v)", "lacks"),
    "argument twice": ("sum(r)", "sum(r, x=r)", 20, "x", "twice"),
    "unknown keyword": ("sum(r)", "sum(r, axes=0)", 20, "axes", "no parameter"),
    "no such axis": ("sum(r)", "sum(r, axis=1)", 20, "1", "no axis"),
    "max of two": ("u * t", "max(u, v) * t", 27, "v", "one value"),
    "vector and matrix": ("z = z + kf", "z = z + W", 24, "z + W", "do not combine"),
    "unequal vectors": ("u * t", "g * t", 27, "y / dot(z, phi(q)) + g * t", "sizes differ"),
    "product of vectors": ("dot(z, phi(q))", "(z @ phi(q))", 27, "z @ phi(q)", "`@` multiplies"),
    "product with a scalar": ("W @ phi(q)", "beta @ phi(q)", 26, "beta @ phi(q)", "`@` multiplies"),
    "inner sizes": ("omega @ x", "omega.T @ x", 19, "omega.T @ x", "inner sizes differ"),
    "wrong inference": ("W @ kf", "W @ v", 23, None, "[V, V] and [V, 2*M]"),
    "transpose of a vector": ("W @ phi(q)", "v.T", 26, "v.T", "matrix"),
    "matrix in a map": ("W @ phi(q)", "phi(W)", 26, "W", "vectors and scalars"),
    "view returned": ("u * t", "row(u)", 27, "y / dot(z, phi(q)) + row(u)", "meets a vector"),
    "view assigned": ("y = W @ phi(q)", "y = col(v)", 26, "col(v)", "cannot be assigned"),
    "view of a matrix": ("z = z + kf", "z = z + sum(row(W))", 24, "row(W)", "view of a vector"),
    "view multiplied": ("W @ kf", "W @ row(kf)", 23, "W @ row(kf)", "view"),
    "condition as a value": ("beta *", "(v > 0) *", 23, "v > 0", "only in `where`"),
    "negated condition": ("u * t", "(not u)", 27, "not u", "only in `where`"),
    "integer needed": ("u * t", "u * W[0, g]", 27, "g", "constant integer"),
    "index outside": ("u * t", "u * v[V]", 27, "V", "outside"),
    "empty slice": ("u * t", "u * v[3:3]", 27, "3:3", "no part"),
    "unknown size": ("u * t", "u * size(Q)", 27, "Q", "no size"),
    "size as a value": ("u * t", "u * K", 27, "K", "not defined"),
    "remainder of a vector": ("u * t", "u % 2", 27, "u % 2", "integers"),
    "remainder of zero": ("u * t", "u * (t % 0)", 27, "0", "at least 1"),
    "remainder of what may be zero": (
        "u * t",
        "u * (t % (t % 2))",
        27,
        "t % 2",
        "constant integer",
    ),
    "remainder of no size": ("u * t", "u * (t % (M - 2 * M))", 27, "M", "not defined"),
    "remainder of a size less itself": (
        "u * t",
        "u * (t % (size(M) - size(M)))",
        27,
        "size(M) - size(M)",
        "at least 1",
    ),
    "exponent": ("r ** i", "r ** x", 20, "x", "not a constant"),
    "division by zero": ("u * t", "u * (1 / 0)", 27, "1 / 0", "no finite value"),
    "division by nothing": ("u * t", "u / (nu - 2)", 27, "u / (nu - 2)", "no finite value"),
    "root of a negative": ("u * t", "u * sqrt(-1)", 27, "sqrt(-1)", "no finite value"),
    "root within a root": ("u * t", "u * sqrt(2 - sqrt(nu * 4.5))", 27, None, "no finite value"),
    "logarithm of zero": ("u * t", "u * log(0)", 27, "log(0)", "no finite value"),
    "large exponential": ("u * t", "u * exp(nu * 500)", 27, "exp(nu * 500)", "no finite value"),
    "bounds of clamp": ("u * t", "clamp(u, 1, -1)", 27, "clamp(u, 1, -1)", "out of order"),
    "negative eps": ("sum(r)", "sum(l2norm(r, eps=-1))", 20, "l2norm(r, eps=-1)", "at least 0"),
    "power tower": ("u * t", "u * 9 ** 9 ** 9", 27, "9 ** 9 ** 9", "no finite value"),
    "t in a map": ("sum(r)", "t", 20, "t", "feature map"),
    "prev in a map": ("sum(r)", "prev(z)", 20, "prev(z)", "feature map"),
    "prev of an input": ("dot(z, ", "dot(prev(k), ", 27, "k", "no state"),
    "prev of an expression": ("dot(z, ", "dot(prev(z + 1), ", 27, "z + 1", "bare name"),
    "empty range": ("range(1, nu + 1)", "range(nu, nu)", 20, "range(nu, nu)", "empty"),
    "range over a size": ("range(1, nu + 1)", "range(K)", 20, "range(K)", "not a constant"),
    "range backwards": ("range(1, nu + 1)", "range(-nu)", 20, "range(-nu)", "before its start"),
    "long range": ("range(1, nu + 1)", "range(10**6)", 20, "range(10**6)", "rounds"),
    "loop variable": ("for i in", "for x in", 20, "x", "shadows"),
    "einsum without result": ("W @ phi(q)", 'einsum("ij", W)', 26, '"ij"', "result is missing"),
    "einsum repeats": ("W @ phi(q)", 'einsum("ii->i", W)', 26, '"ii->i"', "repeated"),
    "einsum counts": ("W @ phi(q)", 'einsum("ij,j->i", W)', 26, '"ij,j->i"', "2 operands"),
    "einsum sizes": ("W @ phi(q)", 'einsum("ij,j->i", W, v)', 26, '"ij,j->i"', "sizes of `j`"),
    "einsum order": ("W @ phi(q)", 'einsum("i->i", W)', 26, '"i->i"', "names 1 axes"),
    "concat of matrices": ("r ** i", "outer(r, r)", 20, None, "joins vectors"),
    "text": ("W @ phi(q)", '"W" * v', 26, '"W"', "einsum"),
    "comprehension": ("W @ phi(q)", "sum(v * i for i in range(2))", 26, None, "concat"),
    "input assigned": (
        "kf = phi(k * exp(g))",
        "k = v\n  kf = phi(k * exp(g))",
        22,
        "k",
        "cannot be assigned",
    ),
    "constant assigned": ("y = W", "eps = v\n  y = W", 26, "eps", "cannot be assigned"),
    "map assigned": ("y = W", "phi = v\n  y = W", 26, "phi", "feature map"),
    "function assigned": ("y = W", "exp = v\n  y = W", 26, "exp", "word of the language"),
    "state in output": ("y = W", "z = z\n  y = W", 26, "z", "in `output`"),
    "local changes shape": ("y = W @", "kf = v\n  y = W @", 26, "kf", "cannot become"),
    "state changes shape": ("z = z + kf", "z = v", 24, "z", "cannot become"),
    "scalar for a state": ("z = z + kf", "z = 0", 24, "z", "cannot become"),
    "line without effect": ("z = z + kf", "z = z + kf\n  W @ kf", 25, "W @ kf", "nothing uses"),
    "output ends in an assignment": ("  y / dot", "  w = y / dot", 27, None, "last line"),
    "cycle": ("sum(r)", "sum(phi(r))", 20, "phi", "calls itself"),
    "augmented": ("z = z + kf", "z += kf", 24, "z += kf", "`+=`"),
    "lambda": ("sum(r)", "(lambda: r)()", 20, None, "not part"),
    "attribute": ("sum(r)", "r.data", 20, "r.data", "attributes"),
    "power of Python's kind": ("u * t", "u ^ 2", 27, "y / dot(z, phi(q)) + u ^ 2", "`^`"),
    "whole division": ("u * t", "u // 2", 27, "u // 2", "`//`"),
    "bit operator": ("u * t", "where(t > 0 | t < 9, u, v)", 27, "0 | t", "`|`"),
    "tilde": ("u * t", "where(~(t > 0), u, v)", 27, "~(t > 0)", "`~`"),
    "method": ("u * t", "u.sum() * v", 27, "u.sum", "attributes"),
    "call of a call": ("u * t", "exp(u)(v)", 27, "exp(u)", "a name can be called"),
    "two targets": ("z = z + kf", "z = w = kf", 24, "z = w = kf", "one name"),
    "conditional": ("u * t", "(u if t else v)", 27, "u if t else v", "`if … else`"),
    "slice with a step": ("u * t", "u[::2]", 27, "2", "no step"),
    "keywords in a star": ("sum(r)", "sum(**r)", 20, "r", "`**`"),
    "complex number": ("u * t", "u * 1j", 27, "1j", "constant"),
    "huge number": ("u * t", "u * 1e999", 27, "1e999", "too large"),
    "letter": ("u * t", "u * \u03b1", 27, "\u03b1", "U+03B1"),
    "open bracket": ("dot(z, phi(q))", "dot(z, phi(q)", 27, "(", "never closed"),
    "unexpected indent": ("  z = z", "    z = z", 24, None, "indent"),
    "unknown section": ("doc:", "docs:", 2, "docs", "no section"),
    "unused state": ("  W: [V, F]", "  W: [V, F]\n  X: [V]", 16, "X", "never assigned"),
    "name twice": ("  u: V", "  u: V\n  v: V", 12, "v", "declared twice"),
    "key twice": ("  k: K", "  q: K", 6, "q", "twice"),
    "no number": ("nu: 2", "nu: two", 3, "two", "finite number"),
    "bad size": ("[V, F]", "[V, 1.5]", 15, "1.5", "no size"),
    "sizes side by side": ("[V, F]", "V F", 15, "V F", "no size"),
    "sizes in brackets": ("[V, F]", "(V, F)", 15, "(V, F)", "no size"),
    "scalar in a list": ("[V, F]", "[V, scalar]", 15, "scalar", "stands alone"),
    "map without argument": ("phi(x)", "phi()", 18, "phi()", "lacks an argument"),
    "no size at all": ("  g: K", "  g:", 9, None, "size is missing"),
    "size zero": ("[V, F]", "[V, 0]", 15, "0", "at least 1"),
    "size of a fraction": ("[V, F]", "[V, eps]", 15, "eps", "integer"),
    "unbound size": ("omega: [M, K]", "omega: [M*M, K]", 13, "M*M", "cannot be found"),
    "start value": ("init: 0.5", "init: ones", 16, "ones", "start value"),
    "key of a state": ("init: 0.5", "start: 0.5", 16, "start", "no `start`"),
    "rule name": ("name: sound", "name: Sound", 1, "Sound", "name of a rule"),
    "reserved name": ("  u: V", "  prev: V", 11, "prev", "word of the language"),
    "keyword": ("  u: V", "  from: V", 11, "from", "keyword"),
    "dunder": ("  u: V", "  u__u: V", 11, "u__u", "two `_`"),
    "letter in a name": ("  u: V", "  \u03b1: V", 11, "\u03b1", "ASCII"),
    "map hides": ("phi(x)", "phi(u)", 18, "phi(u)", "hides"),
    "map without brackets": ("phi(x)", "phi(x", 18, "phi(x", "feature map is"),
    "section of a kind": ("constants: {nu: 2, eps: 1e-3}", "constants: 3", 3, "3", "mapping"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name, tmp_path):
    old, new, line, marked, word = FAULTS[name]
    found = faults(spoil(old, new), tmp_path)
    first = [fault for fault in found if fault.line == line]
    assert first, found
    assert len(found) == 1, found
    assert word in first[0].message
    if marked is not None:
        assert first[0].marked == marked


def test_the_rule_itself_is_sound(tmp_path):
    path = tmp_path / "sound.yaml"
    path.write_text(SOUND)
    assert load_rule(path).warnings == ()


@pytest.mark.parametrize("section", ["name", "inputs", "state", "update", "output"])
def test_missing_section(section, tmp_path):
    lines = SOUND.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(section))
    end = next(i for i in range(start + 1, len(lines)) if not lines[i].startswith(" "))
    found = faults("\n".join(lines[:start] + lines[end:]), tmp_path)
    assert [(fault.line, fault.column) for fault in found] == [(1, 1)]
    assert f"`{section}`" in found[0].message


def test_independent_faults_come_together(tmp_path):
    text = (
        SOUND.replace("omega @ x", "omegas @ x")
        .replace("init: 0.5", "init: ones")
        .replace("v - W", "vv - W")
        .replace("z = z + kf", "z += kf")
        .replace("u * t", "uu * t")
    )
    found = faults(text, tmp_path)
    assert [fault.line for fault in found] == [16, 19, 23, 24, 27]
    assert [fault.marked for fault in found] == ["ones", "omegas", "vv", "z += kf", "uu"]


PAIRS = [(a, b) for a, b in itertools.combinations(FAULTS, 2) if FAULTS[a][2] != FAULTS[b][2]]
PAIRS = [(a, b) for a, b in PAIRS if "\n" not in FAULTS[a][1] + FAULTS[b][1]]


def spoilt_twice(a, b):
    """The sound rule with two independent changes, None where they meet."""
    first, second = (spoil(*FAULTS[name][:2]) for name in (a, b))
    if FAULTS[b][0] not in first or FAULTS[a][0] not in second:
        return None
    text = first.replace(*FAULTS[b][:2], 1)
    return text if text == second.replace(*FAULTS[a][:2], 1) else None


@cache
def alone(name):
    """The place of one fault in the rule that is sound otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        (fault,) = faults(spoil(*FAULTS[name][:2]), Path(folder))
    return fault.line, fault.column


def assert_no_consequences(a, b, folder):
    """Two faults of different lines are reported where each of them is alone, and nowhere else."""
    text = spoilt_twice(a, b)
    if text is None:
        return
    found = [(fault.line, fault.column) for fault in faults(text, folder)]
    assert found and len(set(found)) == len(found)
    assert set(found) <= {alone(a), alone(b)}, (a, b, found)


@pytest.mark.parametrize("first", range(7))
def test_two_faults_have_no_consequences(first, tmp_path):
    for a, b in PAIRS[first::91]:
        assert_no_consequences(a, b, tmp_path)


@pytest.mark.slow
def test_any_two_faults_have_no_consequences(tmp_path):
    for a, b in PAIRS:
        assert_no_consequences(a, b, tmp_path)


KNOWN = {
    **{"start value": 16, "unknown section": 2, "key of a state": 16, "rule name": 1},
    **{"unknown name": 23, "too few arguments": 23, "augmented": 24, "line without effect": 25},
    **{"two targets": 24, "condition as a value": 23, "unknown name in a map": 19, "cycle": 20},
    **{"huge number": 27, "conditional": 27, "t in a map": 20, "constant assigned": 26},
    **{"index outside": 27, "division by zero": 27, "unknown function": 23, "state in output": 26},
}
"""Faults that leave every name and size known, and their lines."""


def test_two_faults_that_hide_nothing_are_both_reported(tmp_path):
    pairs = [(a, b) for a, b in itertools.combinations(KNOWN, 2) if KNOWN[a] != KNOWN[b]]
    for a, b in pairs:
        text = spoilt_twice(a, b)
        if text is not None and KNOWN[a] not in (19, 20) and KNOWN[b] not in (19, 20):
            assert len(faults(text, tmp_path)) == 2, (a, b)


def test_lines_that_are_no_formulas_hide_no_other_fault(tmp_path):
    text = (
        SOUND.replace("omega @ x)", "omega @ x")
        .replace(
            "kf = phi(k * exp(g))", "kf = phi((k * exp(g)\n  for i in range(3)\n    z = z + z z"
        )
        .replace("z = z + kf", "z = z + kff")
        .replace("u * t", "u * t +")
    )
    found = faults(text, tmp_path)
    assert [fault.line for fault in found] == [19, 22, 23, 24, 26, 29]
    assert [fault.marked for fault in found][:2] == ["(", "("]
    assert found[4].marked == "kff"


def test_letters_of_another_script_hide_no_other_fault(tmp_path):
    text = SOUND.replace("v - W @ kf, kf", "v - W @ kf, \u03ba").replace(
        "z = z + kf", "z = z + kff"
    )
    found = faults(text.replace("u * t", "u * tt"), tmp_path)
    assert [(fault.line, fault.marked) for fault in found] == [
        (23, "\u03ba"),
        (24, "kff"),
        (27, "tt"),
    ]
    inside = SOUND.replace("outer(v - W @ kf, kf)", "outer(v - W @ kf,\n    \u03ba)")
    (fault,) = faults(inside, tmp_path)
    assert fault.marked == "\u03ba"


def test_a_key_that_occurs_twice_hides_no_other_fault(tmp_path):
    text = SOUND.replace("  u: V", "  u: V\n  u: V").replace("v - W", "v - W[0, 0, 0]")
    found = faults(text.replace("nu: 2", "nu: two"), tmp_path)
    assert [fault.line for fault in found] == [3, 12, 24]


def test_a_misspelt_section_is_not_missing_as_well(tmp_path):
    for section in ("inputs", "state", "update", "output"):
        (fault,) = faults(SOUND.replace(f"\n{section}:", f"\n{section}x:"), tmp_path)
        assert fault.marked == f"{section}x" and f"`{section}`" in fault.hint


def test_a_function_that_does_not_exist_is_reported_once(tmp_path):
    text = SOUND.replace("phi(x)", "psi(x)")
    (fault,) = faults(text, tmp_path)
    assert (fault.line, fault.marked) == (22, "phi") and "`psi`" in fault.hint


def test_sizes_without_brackets_in_a_flow_mapping(tmp_path):
    text = SOUND.replace("state:\n  W: [V, F]\n", "state: {W: V, F, ").replace(
        "  z: {dims: [F], init: 0.5}\n", "z: {dims: [F], init: 0.5}}\n"
    )
    (fault,) = faults(text, tmp_path)
    assert fault.marked == "F" and "`W: [V, F]`" in fault.hint


def test_a_fault_in_a_loop_is_reported_once(tmp_path):
    for text in ("W @ nothing(kf)", "W @ nothing", "W @ (kf + nothing)"):
        lines = f"  for i in range(3):\n      {text}\n  z = z + kf"
        (fault,) = faults(SOUND.replace("  z = z + kf", lines), tmp_path)
        assert fault.marked == "nothing"


def test_a_fault_is_not_repeated_by_what_follows_from_it(tmp_path):
    found = faults(SOUND.replace("kf = phi(k * exp(g))", "kf = nothing(k)"), tmp_path)
    assert [fault.marked for fault in found] == ["nothing"]


@pytest.mark.parametrize(
    "old, new, hint",
    [
        ("v - W", "vv - W", "did you mean `v`?"),
        ("outer(v", "outter(v", "did you mean `outer`?"),
        ("doc:", "docs:", "did you mean `doc`?"),
        ("u * t", "u * K", "size(K)"),
        ("dot(z, phi(q))", "(z @ phi(q))", "dot(a, b)"),
        ("z = z + kf", "z = z + W", "row(x)"),
        ("z = z + kf", "z += kf", "W = W + …"),
        ("z = z + kf", "z *= 2", "W = W * …"),
        ("u * t", "u ^ 2", "`x ** n` is the power"),
        ("u * t", "u // 2", "`/` divides"),
        ("u * t", "where(t > 0 & t < 9, u, v)", "`and`"),
        ("u * t", "where(~(t > 0), u, v)", "`not`"),
        ("u * t", "u.sum() * v", "`sum(x)`"),
        ("u * t", "u * v.T", "`outer(a, b)`"),
        ("u * t", "u * g", "`outer(a, b)` is the matrix of all products"),
        ("u * t", "u * BETA", "did you mean `beta`?"),
        ("u * t", "u * V", "the value of a size is `size(V)`, or write `v`"),
        ("u * t", "theta(u)", "your own stand under `feature_map`, as `theta(x): …`"),
        ("sum(r)", "sun", "did you mean `sum`?"),
        ("sum(r)", "total", "a feature map sees its arguments"),
        ("  y / dot", "  return y / dot", "the last line of `output` is its value"),
        ("[V, F]", "[V, 2F]", "a product is `2*F`"),
        ("[V, F]", "V F", "a list of sizes is `[V, F]`"),
        ("[V, F]", "V, F", "a list of sizes is `[V, F]`"),
        ("[V, F]", "(V, F)", "a list of sizes is `[V, F]`"),
        ("[V, F]", "V x F", "a list of sizes is `[V, F]`"),
        ("[V, F]", "[V F]", "a list of sizes is `[V, F]`"),
        ("  u: V", "  u:", "a name, a list such as `[V, K]`, or `scalar`"),
        ("u * t", "(u if t else v)", "where(condition, a, b)"),
        ("u * t", "max(u, v) * t", "maximum(a, b)"),
    ],
)
def test_hint(old, new, hint, tmp_path):
    (fault,) = faults(spoil(old, new), tmp_path)
    assert hint in fault.hint


@pytest.mark.parametrize(
    "body, column, marked",
    [
        ("relu(x) + nothing", 11, "nothing"),
        ("concat(x, v)", 11, "v"),
        ("x +", 4, " "),
        ("9**9**9", 1, "9**9**9"),
        ("x.real", 1, "x.real"),
    ],
)
def test_a_fault_of_a_replaced_map_is_placed_in_it(body, column, marked, tmp_path):
    (fault,) = faults(SOUND, tmp_path, maps={"phi": body})
    assert (fault.line, fault.column) == (1, column)
    assert fault.marked.strip() == marked.strip()


def test_a_map_that_does_not_fit_is_placed_where_it_does_not(tmp_path):
    text = SOUND.replace("[V, F]", "[V, K]").replace("[F]", "[K]")
    found = faults(text, tmp_path, maps={"phi": "concat(x, x)"})
    assert found[0].line == 23 and found[0].marked == "W @ kf"
    assert "`K` against `2*K`" in found[0].message


def test_a_fault_inside_a_shipped_map_is_placed_at_the_call(tmp_path):
    (fault,) = faults(SOUND.replace("sum(r)", "sum(dpfp(r, nu=0))"), tmp_path)
    assert fault.marked == "dpfp(r, nu=0)" and "`dpfp`" in fault.message


def test_a_rule_cannot_take_the_name_of_a_tensor_of_a_shipped_map(tmp_path):
    text = SOUND.replace("  u: V", "  u: V\n  hedgehog_A: V").replace("u * t", "hedgehog(v)[0] * u")
    (fault,) = faults(text.replace("* u", "* hedgehog_A * u"), tmp_path)
    assert fault.marked == "hedgehog(v)" and "`hedgehog_A`" in fault.message


def test_unknown_constant_and_map(tmp_path):
    (fault,) = faults(SOUND, tmp_path, set={"mu": 1})
    assert "`mu`" in fault.message
    (fault,) = faults(SOUND, tmp_path, maps={"psi": "x"})
    assert "`psi`" in fault.message


def test_many_faults_stay_readable(tmp_path):
    found = faults(spoil("u * t", " + ".join(f"n{i}" for i in range(300))), tmp_path)
    assert len(found) == 21
    assert "280 more faults" in found[-1].message


def test_a_long_line_is_shown_in_part(tmp_path):
    long = " + ".join(["u"] * 150) + " + nothing + " + " + ".join(["u"] * 150)
    (fault,) = faults(spoil("u * t", long), tmp_path)
    assert fault.marked == "nothing"
    assert fault.column == len("  y / dot(z, phi(q)) + ") + 150 * len("u + ") + 1


@pytest.mark.parametrize(
    "old, new, name",
    [
        ("  k: K", "  k: K\n  idle: K", "input `idle`"),
        ("  u: V", "  u: V\n  idle: V", "param `idle`"),
        ("  omega:", "  idle: V\n  omega:", "buffer `idle`"),
        ("nu: 2", "nu: 2, idle: 3", "constant `idle`"),
        ("  phi(x)", "  idle: relu\n  phi(x)", "feature map `idle`"),
    ],
)
def test_unused_declarations_are_warnings(old, new, name, tmp_path):
    path = tmp_path / "idle.yaml"
    path.write_text(spoil(old, new))
    (warning,) = load_rule(path).warnings
    assert name in warning and "warning" in warning and "idle.yaml:" in warning


def test_a_constant_that_only_a_size_uses_is_used(tmp_path):
    path = tmp_path / "sizes.yaml"
    path.write_text(
        "name: sizes\nconstants: {n: 2}\ninputs: {q: K, k: '2*n'}\nstate: {W: [K]}\n"
        "update: W = W + q * k[n]\noutput: W\n"
    )
    assert load_rule(path).warnings == ()


def test_a_state_that_only_an_empty_loop_assigns_is_never_assigned(tmp_path):
    text = SOUND.replace("  z = z + kf", "  for i in range(2, nu):\n      z = z + kf")
    (fault,) = faults(text, tmp_path)
    assert (fault.line, fault.marked) == (16, "z")


def test_an_argument_of_a_map_is_no_use_of_an_input(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(SOUND.replace("  k: K", "  k: K\n  x: K"))
    (warning,) = load_rule(path).warnings
    assert "input `x`" in warning


def test_a_subscript_that_the_inferred_size_excludes(tmp_path):
    text = SOUND.replace("u * t", "u * z[9]").replace("omega: [M, K]", "omega: [3, K]")
    (fault,) = faults(text, tmp_path)
    assert fault.line == 27 and "outside" in fault.message
