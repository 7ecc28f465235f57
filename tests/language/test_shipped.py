"""The shipped rules and maps: names, input order, dims; they load, and lower to sound steps."""

import pytest

from fwgen import list_feature_maps, list_rules, load_rule
from fwgen.ir.verify import verify

# Name: inputs in order with dims, params, buffers, states with dims.
RULES = {
    "sum": ("q K, k K, v V", "", "", "W V K"),
    "linear_attention": ("q K, k K, v V", "", "", "W V K, z K"),
    "cheap_linear": ("q K, h K", "", "", "C K K"),
    "gated_cheap_linear": ("q K, h K, alpha, beta", "Wf K K, bf K", "", "C K K"),
    "performer": (
        "q K, k K, v V",
        "",
        "favor_positive_omega favor_positive_M K",
        "W V favor_positive_M, z favor_positive_M",
    ),
    "rfa_gated": ("q K, k K, v V, a", "", "rfa_omega rfa_M K", "W V 2*rfa_M, z 2*rfa_M"),
    "t2r": ("q K, k K, v V", "t2r_A t2r_M K, t2r_b t2r_M", "", "W V t2r_M, z t2r_M"),
    "leaformer": (
        "q K, k K, v V",
        "Aq J K, aq J, bq J, cq, Ak J K, ak J, bk J, ck",
        "",
        "W V 2*K, z 2*K",
    ),
    "cosformer": ("q K, k K, v V, p", "", "", "W V 2*K, z 2*K"),
    "delta": ("q K, k K, v V, beta", "", "", "W V 2*K"),
    "delta_attention_normalized": ("q K, k K, v V, beta", "", "", "W V 2*K, z 2*K"),
    "fwp_additive_tanh": ("q K, k K, v V", "", "", "W V K"),
    "fwm2": ("q K, k K, v V, beta", "", "", "W V K"),
    "fwm": ("s D, r D, u D, b, n0 D, e1 D, e2 D, e3 D", "", "", "F D D D"),
    "delta_rnn": ("q D, k D, v D, kr D, vr D, beta, betar", "", "", "W D D, R D D, h D"),
    "recurrent_delta": (
        "q D, k D, v D, beta",
        "Rq D D, Rk D D, Rv D D, rb D",
        "",
        "W D D, y D",
    ),
    "delta_delta": ("q K, k K, v 3*D+1, beta", "", "", "W1 3*D+1 K, W2 D D"),
    "srwm": ("x D", "", "", "Wy D D, Wq D D, Wk D D, wb 4 D"),
    "elstm": ("z D, f D", "wz D, wf D, bz D, bf D", "", "c D"),
    "rwkv4": ("k V, v V", "w V, u V", "", "a V, b V, m V"),
    "rwkv6": ("r K, k K, v V, g K", "u K", "", "W V K"),
    "rwkv7": ("r K, g K, k K, v V, a K, b K", "", "", "W V K"),
    "galite": ("q K, k K, v V, b V, gamma K, p1 R, p2 R, p3 R", "", "", "W V K*R, z K*R"),
    "agalite": (
        "q K, k K, v V, b V, gamma K, p1 R, p2 R, p3 R",
        "",
        "omega J",
        "kt J K*R, vt J V, z K*R",
    ),
    "retnet": ("q K, k K, v V", "gamma_log", "", "W V K"),
    "simple_gla": ("q K, k K, v V, g", "", "", "W V K"),
    "mamba2": ("C K, B K, x V, dt", "A_log, D", "", "W V K"),
    "gla": ("q K, k K, v V, g K", "", "", "W V K"),
    "hgrn2": ("q K, f K, v V", "", "", "W V K"),
    "mlstm": ("q K, k K, v V, i, f", "", "", "W V K, n K, m"),
    "deltanet": ("q K, k K, v V, beta", "", "", "W V K"),
    "gated_delta": ("q K, k K, v V, g, beta", "", "", "W V K"),
    "kda": ("q K, k K, v V, g K, beta", "", "", "W V K"),
    "gdn2": ("q K, k K, v V, g K, b K, w V", "", "", "W V K"),
    "comba": ("q K, k K, v V, p K, g, beta", "", "", "W V K"),
    "delta_product": ("q K, k 2 K, v 2 V, g, beta 2", "", "", "W V K"),
    "oja": ("q K, k K, v V, gv V, beta", "", "", "W V K"),
    "longhorn": ("q K, k K, x V, beta V", "D V", "", "W V K"),
    "momentum_delta": ("q K, k K, v V, p K, g, mu, beta, eta", "", "", "W V K, M V K"),
    "titans": ("q K, k K, v V, alpha, eta, theta", "", "", "W V K, M V K"),
    "ttt_linear": ("q D, k D, v D, eta", "w D, b D", "", "W D D, c D"),
}
GATES = ", ".join(
    f"q_{g} D, k_{g} D, v_{g} D, kr_{g} D, vr_{g} D, beta_{g}, betar_{g}" for g in "iuo"
)
FAST = ", ".join(f"W_{g} D D, R_{g} D D" for g in "iuo")
RULES["delta_lstm"] = (GATES, "", "", FAST + ", h D, c D")
MAPS = {
    "identity": "K",
    "l2norm": "K",
    "softmax": "K",
    "sum_normalize": "K",
    "elu1": "K",
    "relu1": "K",
    "squared_relu": "K",
    "silu_l2": "K",
    "dpfp": "2*K",
    "dpfp(nu=3)": "6*K",
    "favor_positive": "favor_positive_M",
    "favor_hyperbolic": "2*favor_hyperbolic_M",
    "favor_trig": "2*favor_trig_M",
    "favor_relu": "favor_relu_M",
    "rfa": "2*rfa_M",
    "t2r": "t2r_M",
    "ff_kernel": "ff_kernel_M",
    "glu_kernel": "glu_kernel_M",
    "taylor2": "K*K + K + 1",
    "hedgehog": "2*K",
    "cos_position(x, 0.5)": "2*K",
}


def shown(group) -> str:
    """Names and dims in order, as the tables above write them."""
    entries = ([name, *(str(d).replace(" ", "") for d in dims)] for name, dims in group.items())
    return ", ".join(" ".join(entry) for entry in entries)


def test_the_tables_are_complete():
    assert set(RULES) == set(list_rules())
    assert {name.partition("(")[0] for name in MAPS} == set(list_feature_maps())


@pytest.mark.parametrize("name", RULES)
def test_interface(name):
    rule = load_rule(name)
    found = tuple(map(shown, (rule.inputs, rule.params, rule.buffers, rule.states)))
    assert found == RULES[name]
    assert rule.name == name and rule.doc and rule.warnings == ()
    verify(rule.step, "step")


@pytest.mark.parametrize("name", MAPS)
def test_a_map_serves_where_the_rule_leaves_the_size_open(name):
    rule = load_rule("sum", maps={"phi": name})
    assert str(rule.states["W"][1]) == MAPS[name]
    verify(rule.step, "step")


def test_start_values():
    starts = {s.name: s.init for s in load_rule("rwkv4").step.states}
    assert starts == {"a": 0.0, "b": 0.0, "m": -1e38}
    assert {s.init for s in load_rule("srwm").step.states} == {None}


def test_a_map_has_one_instance_of_its_tensors():
    rule = load_rule("linear_attention", maps={"phi": "favor_positive"})
    assert list(rule.buffers) == ["favor_positive_omega"]


SHORT = {
    "elu1": "elu1(x)",
    "relu": "relu(x)",
    "dpfp(nu=2)": "dpfp(x, nu=2)",
    "sum_normalize(dpfp(nu=2), eps=1e-6)": "sum_normalize(dpfp(x, nu=2), eps=1e-6)",
    "l2norm(silu)": "l2norm(silu(x))",
    "elu1 + 0.5 * relu1": "elu1(x) + 0.5 * relu1(x)",
    "-softmax(tanh) ** 2": "-softmax(tanh(x)) ** 2",
    "concat(elu1, dpfp(), x)": "concat(elu1(x), dpfp(x), x)",
    "maximum(0.1, relu)[0:2]": "maximum(0.1, relu(x))[0:2]",
}


@pytest.mark.parametrize("short", SHORT)
def test_a_map_may_leave_its_argument_out_wherever_it_stands(short):
    brief, whole = (load_rule("sum", maps={"phi": text}) for text in (short, SHORT[short]))
    assert [(s.target, s.index, s.body) for s in brief.step.statements] == [
        (s.target, s.index, s.body) for s in whole.step.statements
    ]


def test_a_tensor_may_have_the_name_of_a_shipped_map(tmp_path):
    path = tmp_path / "named.yaml"
    path.write_text(
        "name: named\nconstants: {dpfp: 3}\ninputs: {k: K}\nparams: {t2r: K}\nstate: {z: K}\n"
        "feature_map:\n  phi: t2r * identity + dpfp\nupdate: z = z + phi(k)\noutput: z\n"
    )
    rule = load_rule(path)
    assert list(rule.params) == ["t2r"] and rule.warnings == ()
