"""Draws small rules as text: every line is legal by construction, most mean nothing.

Expressions are typed by their axes: `s` a scalar, `K`, `F` and `V` vectors, `W` a matrix [V, F].
Conditions look at raw inputs and the position only, so that rounding decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from witnesses import Witness, evaluator
from witnesses.table import Values

SIZES = [{"K": 4, "V": 3}, {"K": 9, "V": 17}]  # one vector of lanes, and several with a rest

# Body of `phi(x)` and the dim of its value.
MAPS = {
    "tanh(x)": ("K", 1, 0),
    "elu(x) + 1": ("K", 1, 0),
    "softmax(x)": ("K", 1, 0),
    "relu(concat(x, -x))": ("2*K", 2, 0),
    "concat(1, x, square(x))": ("2*K + 1", 2, 1),
    "concat(sigmoid(x) * roll(x, i) for i in range(0, 3))": ("3*K", 3, 0),
    "r = softplus(x)\nl2norm(concat(r, x[1:3]))": ("K + 2", 1, 2),
}

# Kind -> formulas; `{K}` is a hole for a K, `{0}` for the kind itself, `#` the name of its dim.
ELEMENT = ["tanh({0})", "sin({0})", "-{0}", "sigmoid({0})", "0.5 * {0}", "silu({0})", "gelu({0})"]
KINKED = ["relu({0})", "abs({0})", "maximum({0}, {0})", "minimum({0}, 0.3)", "clamp({0}, -1, 1)"]
COMBINED = ["{0} + {0}", "{0} - {0}", "{0} * {0}", "{s} * {0}", "{0} / (1 + square({0}))"]
CHOSEN = ["where(s > 0, {0}, {0})", "where(t % 2 == 0, {0}, 0.5 * {0})"]
CHOSEN += ["where(s > -0.5 and not (t < 1), {0}, {0})"]
VECTOR = ["roll({0}, 1)", "softmax({0})", "l2norm({0})", "rmsnorm({0})", "layernorm({0})"]
VECTOR += ["stop_gradient({0}) + {0}", "concat({0}[1:#], {0}[0])"]
ANY = [*ELEMENT, *KINKED, *COMBINED, *CHOSEN]
FORMULAS: dict[str, list[str]] = {
    "s": [*ANY, "dot({F}, {F})", "mean({V})", "sum({K})", "max({V})", "norm({V})", "{V}[1]"],
    "K": [*ANY, *VECTOR],
    "F": [*ANY, *VECTOR, "phi({K})", "{V} @ {W}", "{W}.T @ {V}", "mean({W}, axis=0)"],
    "V": [*ANY, *VECTOR, "{W} @ {F}", "A @ {V}", "{V} @ A", "sum({W}, axis=1)"],
    "W": [*ANY, "outer({V}, {F})", "row({F}) * {W}", "col({V}) * {W}", "{W} @ diag({F})"],
}
FORMULAS["V"] += ['einsum("ij,j->i", {W}, {F})', "max({W}, axis=1)"]
FORMULAS["W"] += ["{W} + {s} * outer({V} - {W} @ {F}, {F})", "softmax({W}, axis=1)"]
FORMULAS["W"] += ["row(sigmoid({F})) * {W} + col({V}) * row({F})", "A @ {W}"]
FORMULAS["W"] += ['einsum("ik,kj->ij", A, {W})', "(1 - outer(sigmoid({V}), sigmoid({F}))) * {W}"]
# Parts of a matrix: what they leave out must not be touched, and starts from zeros backwards.
FORMULAS["s"] += ["{W}[1, 0]", "norm({W})", "sum(l2norm({W}, axis=0))"]
FORMULAS["F"] += ["{W}[0]", "{V}[0:2] @ {W}[1:3]", "max({W}, axis=0)"]
FORMULAS["V"] += ["{W}[:, 1]", "{W}[:, 0:2] @ {F}[1:3]"]
FORMULAS["W"] += ["l2norm({W}, axis=0)", "outer({W}[:, 0], {F})", "{W} - 0.5 * prev(W)"]
# Outputs besides a vector of values: dims, their text in a witness, the expression.
OUTPUTS = {
    "V": "{V}",
    "F": "{F}",
    "V F": "{W}",
    "VF": "flatten({W})",
    "F+VF": "concat({W}[0], flatten({W}))",
}
BOUNDED = {"W": "0.3 * {W} + 0.5 * tanh({W})", "V": "tanh({V})", "F": "tanh({F})"}


@dataclass(frozen=True, repr=False)
class RandomRule:
    """Text of a rule and what a Problem for it must hold."""

    text: str
    inputs: dict[str, str]
    states: dict[str, str]
    features: Callable[[dict[str, int]], int]
    output: str = "V"
    sizes: int = 0

    def witness(self) -> Witness:
        """The second evaluator's reading of the text."""
        rule = evaluator.load(self.text)

        def step(x: Values, p: Values, s: Values):
            inputs = {n: x[n] for n in self.inputs}
            return evaluator.evaluate(rule, inputs, p, s, x["t"])

        return Witness(
            "random_rule",
            step,
            self.inputs,
            self.states,
            {"VF": "X", "F+VF": "Y"}.get(self.output, self.output),
            params={"A": "V V"},
            buffers={"c": "V"},
            derived={
                "K": lambda s: SIZES[self.sizes]["K"],
                "V": lambda s: SIZES[self.sizes]["V"],
                "F": self.features,
                "X": lambda s: s["V"] * s["F"],
                "Y": lambda s: s["F"] + s["V"] * s["F"],
            },
            draw={"W": "small"},
            uses_position="t" in self.text,
        )

    def __repr__(self) -> str:
        return self.text

    def _repr_pretty_(self, printer, cycle) -> None:
        """How Hypothesis shows a failing rule: as the text that reproduces it."""
        printer.text(self.text)


@st.composite
def expressions(draw, kind: str, names: dict[str, list[str]], depth: int) -> str:
    """A formula of a kind; at depth 0 a name of it (or a number for a scalar)."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(names[kind]))
    formula = draw(st.sampled_from(FORMULAS[kind])).replace("#", kind)
    text, position = "", 0
    while position < len(formula):
        if formula[position] == "{":
            hole = formula[position + 1]
            inner = draw(expressions(kind if hole == "0" else hole, names, depth - 1))
            text += f"({inner})" if " " in inner or inner.startswith("-") else inner
            position += 3
        else:
            text += formula[position]
            position += 1
    return text


@st.composite
def rules(draw) -> RandomRule:
    """A rule over q, k, g: K, v: V, s scalar, with a matrix state and perhaps a vector state."""
    body = draw(st.sampled_from(sorted(MAPS)))
    _, times, plus = MAPS[body]
    second = draw(st.sampled_from(["", "h", "z"]))
    states = {"W": "V F"} | ({"h": {"h": "V"}, "z": {"z": "F"}}.get(second, {}))
    names = {"s": ["s", "0.7", "t / 8"], "K": ["q", "k", "g"], "V": ["v", "c"], "F": ["phi(k)"]}
    names["W"] = ["W", "prev(W)"]
    if second:
        names[states[second]] += [second, f"prev({second})"]
    lines = []
    for number in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from("sKFV"))
        lines.append(f"a{number} = " + draw(expressions(kind, names, 2)))
        names[kind] = [*names[kind], f"a{number}"]
    for state, dims in states.items():
        kind = "W" if state == "W" else dims
        for _ in range(draw(st.integers(1, 2))):
            lines.append(f"{state} = " + draw(expressions(kind, names, 2)))
        if draw(st.booleans()):
            lines.append(f"{state} = {BOUNDED[kind].replace('{' + kind + '}', state)}")
    if draw(st.booleans()):
        lines += ["for i in range(1, 3):", "  W = W + 0.1 * i * outer(v, phi(k))"]
    output = draw(st.sampled_from(["V", "V", *OUTPUTS]))
    value = OUTPUTS[output]
    for kind in "VFW":
        while "{" + kind + "}" in value:
            value = value.replace("{" + kind + "}", draw(_closed(kind, names)), 1)
    text = _text(body, states, lines, value)
    return RandomRule(
        text,
        {"q": "K", "k": "K", "g": "K", "v": "V", "s": ""},
        states,
        lambda s: times * s["K"] + plus,
        output,
        draw(st.integers(0, len(SIZES) - 1)),
    )


@st.composite
def _closed(draw, kind: str, names: dict[str, list[str]]) -> str:
    """A formula that may stand wherever a name may."""
    inner = draw(expressions(kind, names, 2))
    return f"({inner})" if " " in inner or inner.startswith("-") else inner


def _text(body: str, states: dict[str, str], lines: list[str], output: str) -> str:
    block = "\n    ".join(body.split("\n"))
    declared = "\n".join(f"  {n}: [{', '.join(d.split())}]" for n, d in states.items())
    update = "\n  ".join(lines)
    return (
        "name: random_rule\n"
        "inputs: {q: K, k: K, g: K, v: V, s: scalar}\n"
        "params: {A: [V, V]}\nbuffers: {c: V}\n"
        f"state:\n{declared}\nfeature_map:\n  phi(x): |\n    {block}\n"
        f"update: |\n  {update}\noutput: |\n  {output}\n"
    )
