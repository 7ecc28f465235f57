"""What a rule becomes: one statement per reduction, shapes inferred, names kept."""

import pytest

from fwgen import RuleError, load_rule
from fwgen.ir.nodes import Step
from fwgen.ir.text import dump
from fwgen.ir.verify import verify
from fwgen.language import derived_dims, lower

HEAD = "inputs: {q: K, k: K, v: V, g: scalar, m: [N, K], flag: scalar}\nstate: {W: [V, F]}\n"


def step_of(folder, output: str, update: str = "W = W + outer(v, k)", head: str = HEAD) -> Step:
    block = "\n".join(f"  {line}" for line in output.split("\n"))
    lines = "\n".join(f"  {line}" for line in update.split("\n"))
    path = folder / "small.yaml"
    path.write_text(f"name: small\n{head}update: |\n{lines}\noutput: |\n{block}\n")
    step = load_rule(path).step
    verify(step, "step")
    return step


def lines_of(step: Step) -> list[str]:
    """The statements as the readable dump has them, blanks made one."""
    lines = [" ".join(line.split()) for line in dump(step).split("\n")]
    return [line for line in lines if " = " in line and not line.startswith(("dims:", "next"))]


OUTPUTS = {
    "W @ q": ["y[i] = sum_j W_1[i, j] * q[j]"],
    "q @ W.T": ["y[i] = sum_j q[j] * W_1[i, j]"],
    "W @ diag(q) @ k": ["y[i] = sum_j W_1[i, j] * q[j] * k[j]"],
    "diag(v) @ W @ q": ["y[i] = v[i] * p[i]", "p[i] = sum_j W_1[i, j] * q[j]"],
    "W @ eye(K) @ q": ["y[i] = sum_j W_1[i, j] * q[j]"],
    "W @ (outer(q, k) @ q)": [
        "p = sum_i k[i] * q[i]",
        "p_1[i] = sum_j W_1[i, j] * q[j]",
        "y[i] = p * p_1[i]",
    ],
    "W @ (eye(K) - g * outer(k, k)) @ q": [
        "p[i] = sum_j W_1[i, j] * k[j]",
        "y[i] = sum_j (W_1[i, j] - g * k[j] * p[i]) * q[j]",
    ],
    "(diag(q) @ diag(k)) @ q": ["y[i] = q[i] * k[i] * q[i]"],
    "diag(q).T @ (-diag(k)) @ W.T @ v": ["y[i] = q[i] * (-k[i]) * p[i]"],
    "2 * g * W @ q": ["p[i] = sum_j W_1[i, j] * q[j]", "y[i] = 2 * g * p[i]"],
    "concat(q, g, v)": ["y[i] = q[i]", "y[K] = g", "y[K + 1 + i] = v[i]"],
    "concat(v[0:2], g)": ["y[i] = v[i]", "y[2] = g"],
    "roll(v, 1)": ["y[i] = v[(i - 1) mod V]"],
    "flatten(outer(v, q))": ["y[K*i + j] = v[i] * q[j]"],
    "m[1]": ["y[i] = m[1, i]"],
    "m[1, 0] * v": ["y[i] = m[1, 0] * v[i]"],
    "mean(v) * v": ["s = sum_i v[i]", "y[i] = s / V * v[i]"],
    "sum(row(q) * W, axis=1)": ["y[i] = sum_j q[j] * W_1[i, j]"],
    "sum(W, axis=0)": ["y[i] = sum_j W_1[j, i]"],
    "v ** 2 + v ** 3": ["y[i] = square(v[i]) + v[i] ** 3"],
    "size(K) * v": ["y[i] = K * v[i]"],
    "(t ** 2 % 3) * v": ["y[i] = t * t % 3 * v[i]"],
    "(t % size(K)) * v": ["y[i] = t % K * v[i]"],
    "n = 2 * size(K) + 1\n(t % n) * v": ["y[i] = t % (2 * K + 1) * v[i]"],
    "prev(W) @ q": ["y[i] = sum_j W[i, j] * q[j]"],
    "u = W @ q\nu": ["u[i] = sum_j W_1[i, j] * q[j]", "y[i] = u[i]"],
    "u = W @ q\nu = u * u\nu": None,
    "W @ softmax(q) + W @ softmax(q)": None,
}


@pytest.mark.parametrize("output", [o for o, lines in OUTPUTS.items() if lines])
def test_statements(output, tmp_path):
    found = lines_of(step_of(tmp_path, output))
    for line in OUTPUTS[output]:
        assert line in found, found


def test_a_local_that_is_assigned_again_has_versions(tmp_path):
    step = step_of(tmp_path, "u = W @ q\nu = u * u\nu")
    assert "u_1[i] = u[i] * u[i]" in lines_of(step)
    assert step.array("u_1").of == "u"


def test_equal_temporaries_are_made_once(tmp_path):
    once = lines_of(step_of(tmp_path, "W @ softmax(q)"))
    twice = lines_of(step_of(tmp_path, "W @ softmax(q) + W @ softmax(q)"))
    assert sum("exp" in line for line in once) == sum("exp" in line for line in twice) == 1


def test_the_state_follows_its_last_version(tmp_path):
    step = step_of(tmp_path, "W @ q", "W = exp(g) * W\nW = W + outer(v, k)")
    (state,) = step.states
    assert (state.name, state.old, state.new, state.init) == ("W", "W", "W_2", 0.0)
    assert step.array("W").role == "state" and step.array("W_2").role == "local"
    assert step.array(step.output).role == "local"


def test_lines_are_those_of_the_file(tmp_path):
    step = step_of(tmp_path, "u = W @ q\nu * g", "W = exp(g) * W\nW = W + outer(v, k)")
    assert [statement.line for statement in step.statements] == [5, 6, 8, 9]


@pytest.mark.parametrize(
    "maps, dim",
    [
        ("phi(x): x", "K"),
        ("phi(x): concat(x, -x, 1)", "2*K + 1"),
        ("phi: dpfp(nu=3)", "6*K"),
        ("phi: taylor2", "K*K + K + 1"),
        ("phi: favor_hyperbolic", "2*favor_hyperbolic_M"),
    ],
)
def test_a_size_that_only_a_map_makes_is_inferred(maps, dim, tmp_path):
    head = HEAD + f"feature_map: {{'{maps.split(':')[0]}': '{maps.partition(': ')[2]}'}}\n"
    step = step_of(tmp_path, "W @ phi(q)", "W = W + outer(v, phi(k))", head)
    assert [(name, str(value)) for name, value in step.dims] == [("F", dim)]
    assert [str(d) for d in step.array("W").dims] == ["V", dim]


def test_two_sizes_are_equal_only_by_name(tmp_path):
    with pytest.raises(RuleError, match="`K` against `V`"):
        step_of(tmp_path, "dot(q, v)")


def test_what_slices_need_of_the_sizes_is_noted(tmp_path):
    step = step_of(tmp_path, "concat(v[0:4], q[K-1], m[2, 1:K])")
    needed = {str(quantity) for quantity, _ in step.requires}
    assert needed == {"V - 4", "N - 3", "K - 2"}


def test_inputs_of_conditions_may_hold_integers(tmp_path):
    step = step_of(tmp_path, "where(flag > 0 and g < 1, g, 0) * v")
    floating = {array.name: array.floating for array in step.arrays if array.role == "input"}
    assert floating["flag"] is False
    assert all(kept for name, kept in floating.items() if name != "flag")


def test_names_never_collide(tmp_path):
    head = "inputs: {q: K, k: K, p: K, s: K, W_1: K, y: K, i: K}\nstate: {W: [K, K]}\n"
    step = step_of(
        tmp_path, "W @ softmax(q) + dot(p, s) * y * i", "W = W + outer(W @ k, W_1)", head
    )
    names = [array.name for array in step.arrays]
    assert len(names) == len(set(names)) and step.output not in {"y", "W"}


def test_a_condition_in_the_middle_is_evaluated_once(tmp_path):
    step = step_of(tmp_path, "where(0 < exp(v) < 1, v, 0)")
    assert sum("exp" in line for line in lines_of(step)) == 1


def test_loops_are_unrolled(tmp_path):
    step = step_of(tmp_path, "W @ q", "for i in range(1, 3):\n    W = W + i * outer(v, m[i])")
    assert "W_2[i, j] = W_1[i, j] + 2 * v[i] * m[2, j]" in lines_of(step)


@pytest.mark.parametrize("rounds, fits", [(1300, True), (4096, False)])
def test_the_number_of_statements_is_bounded(rounds, fits, tmp_path):
    update = f"for i in range({rounds}):\n    W = W + outer(v, k)"
    if fits:
        step_of(tmp_path, "W @ q", update)
    else:
        with pytest.raises(RuleError, match="4096"):
            step_of(tmp_path, "W @ q", update + "\nW = W + outer(v, q)")


@pytest.mark.parametrize(
    "phi, constants, shown",
    [
        ("dpfp(nu=nu)", "nu: 1", "2*K*nu"),
        ("concat(x, dpfp(nu=2*nu))", "nu: 3", "4*K*nu + K"),
        ("concat(dpfp(nu=nu) * i for i in range(m))", "nu: 2, m: 3", "12*K"),
        ("concat(x for i in range(nu ** 2))", "nu: 2", "4*K"),
        ("concat(x, x)", "nu: 2", "2*K"),
    ],
)
def test_derived_sizes_name_their_constants(phi, constants, shown, tmp_path):
    path = tmp_path / "derived.yaml"
    path.write_text(
        f"name: derived\nconstants: {{{constants}}}\ninputs: {{q: K, k: K, v: V}}\n"
        f"state: {{W: [V, F]}}\nfeature_map:\n  phi: {phi}\n"
        "update: W = W + outer(v, phi(k))\noutput: W @ phi(q)\n"
    )
    assert {name: str(dim) for name, dim in derived_dims(load_rule(path)).items()} == {"F": shown}


@pytest.mark.parametrize("init", ["0", "0.5", "param"])
def test_a_size_of_a_map_is_inferred_whatever_a_state_starts_from(init, tmp_path):
    path = tmp_path / "learned.yaml"
    path.write_text(
        "name: learned\ninputs: {q: K, v: V}\n"
        f"state: {{W: {{dims: [V, F], init: {init}}}}}\n"
        "feature_map:\n  phi(x): concat(relu(x), relu(-x))\n"
        "update: W = W + outer(v, phi(q))\noutput: W @ phi(q)\n"
    )
    (size,) = [str(dim) for name, dim in lower(load_rule(path)).dims if name == "F"]
    assert size == "2*K"
