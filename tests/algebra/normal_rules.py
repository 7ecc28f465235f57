"""Rules that cover the structures the normal form must see through, and what it must find."""

import textwrap

QKV = "q: K, k: K, v: V"

# name: (inputs, params and buffers, states, update, output)
RULES = {
    "sum": (QKV, "", "W: [V, K]", "W = W + outer(v, k)", "W @ q"),
    "gate_of_input": (
        f"{QKV}, a: scalar",
        "",
        "W: [V, K]",
        "W = a * W + (1 - a) * outer(v, k)",
        "W @ q",
    ),
    "delta_in_two_terms": (
        f"{QKV}, beta: scalar",
        "",
        "W: [V, K]",
        "kf = l2norm(k)\nold = W @ l2norm(k)\nW = W - beta * outer(old, kf) + beta * outer(v, kf)",
        "W @ l2norm(q)",
    ),
    "delta_as_product": (
        f"{QKV}, beta: scalar, g: K",
        "",
        "W: [V, K]",
        "W = W @ diag(exp(g)) @ (eye(K) - beta * outer(k, k)) + beta * outer(v, k)",
        "W @ q",
    ),
    "outer_first": (
        f"{QKV}, beta: scalar, g: K",
        "",
        "W: [V, K]",
        "W = row(sigmoid(g)) * W\nD = outer(v - W @ k, k)\nW = W + beta * D",
        "W @ q * rsqrt(size(K))",
    ),
    "erase_and_write": (
        f"{QKV}, g: K, b: K, w: V",
        "",
        "W: [V, K]",
        "W = W @ diag(exp(g))\nW = W + outer(w * v - W @ (b * k), k)",
        "W @ q",
    ),
    "steps": (
        "q: K, k: [3, K], v: [3, V], beta: [3], g: scalar",
        "",
        "W: [V, K]",
        "W = exp(g) * W\nfor i in range(3):\n"
        "    W = W + beta[i] * outer(v[i] - W @ l2norm(k[i]), l2norm(k[i]))",
        "W @ q",
    ),
    "oja": (
        f"{QKV}, gv: V, beta: scalar",
        "",
        "W: [V, K]",
        "W = col(exp(gv)) * W\nW = W + beta * outer(v, k - W.T @ v)",
        "W @ q",
    ),
    "bonus_after": (
        f"{QKV}, g: K",
        "params u: K",
        "W: [V, K]",
        "W = W @ diag(exp(g)) + outer(v, k)",
        "(prev(W) + outer(v, u * k)) @ q + (W - prev(W)) @ k",
    ),
    "keep": (
        f"{QKV}, x: scalar, f: scalar",
        "",
        "W: [V, K]",
        "W = (1 - sigmoid(x)) * exp(f) * W + outer(v, k)",
        "W @ q",
    ),
    "longhorn": (
        f"{QKV}, beta: V",
        "params D: V",
        "W: [V, K]",
        "dl = beta / (1 + beta * dot(k, k))\nW = (1 - outer(dl, square(k))) * W + outer(dl * v, k)",
        "W @ q + D * v",
    ),
    "two_sided_gate": (
        f"{QKV}, b: V, c: K",
        "",
        "W: [V, K]",
        "W = W - outer(b, c) * W\nW = W + outer(v - W @ k, k)",
        "W @ q",
    ),
    "squashed": (QKV, "", "W: [V, K]", "W = tanh(W + outer(v, k))", "W @ q"),
    "projected": (
        f"{QKV}, beta: scalar",
        "",
        "W: [V, K]",
        "W = W + beta * outer(v - W @ k, k)\nW = W / maximum(1, norm(W))",
        "layernorm(W @ tanh(q))",
    ),
    "momentum": (
        f"{QKV}, p: K, g: scalar, mu: scalar, beta: scalar, eta: scalar",
        "",
        "W: [V, K], M: [V, K]",
        "M = exp(mu) * M + eta * outer(prev(W) @ p - v, k)\nW = exp(g) * prev(W) - beta * M",
        "W @ q",
    ),
    "value_gate": (
        f"{QKV}, b: V",
        "",
        "W: [V, K]",
        "W = W + outer(b * (v - W @ k), k)",
        "W @ q",
    ),
    "mixed_rows": (
        QKV,
        "params P: [V, V]",
        "W: [V, K]",
        "W = W - outer(P @ (W @ k), k) + outer(v, k)",
        "W @ q",
    ),
    "left_product": (QKV, "params P: [V, V]", "W: [V, K]", "W = P @ W + outer(v, k)", "W @ q"),
    "right_product": (QKV, "params P: [K, K]", "W: [V, K]", "W = W @ P + outer(v, k)", "W @ q"),
    "both_axes": (
        f"{QKV}, beta: scalar",
        "",
        "W: [V, K]",
        "W = W - beta * outer(W @ k, k) - beta * outer(v, W.T @ v)",
        "W @ q",
    ),
    "masked": (
        f"{QKV}, flag: scalar",
        "",
        "W: [V, K]",
        "W = where(flag > 0, W - outer(W @ k, k), W) + outer(v, k)",
        "W @ q",
    ),
    "detached": (
        QKV,
        "",
        "W: [V, K]",
        "W = W + outer(v - stop_gradient(W @ k), k)",
        "W @ q",
    ),
    "matrix_write": (f"{QKV}, X: [V, K]", "", "W: [V, K]", "W = W + X", "W @ q + W @ k"),
    "normaliser": (
        f"{QKV}, a: scalar",
        "",
        "W: [V, K], z: [K]",
        "W = a * W + outer(v, exp(k))\nz = a * z\nz = z + exp(k)",
        "W @ q / (dot(z, q) + 3)",
    ),
    "matrix_lstm": (
        f"{QKV}, i: scalar, f: scalar",
        "",
        "W: [V, K], n: [K], m: scalar",
        "m = maximum(logsigmoid(f) + m, i)\n"
        "fg = exp(logsigmoid(f) + prev(m) - m)\nig = exp(i - m)\n"
        "W = fg * W + ig * outer(v, k)\nn = fg * n + ig * k",
        "s = rsqrt(size(K))\ns * W @ q / (maximum(abs(s * dot(n, q)), exp(-m)) + 1e-6)",
    ),
    "running_max": (
        "k: V, v: V",
        "params w: V, u: V",
        "a: [V], b: [V], m: {dims: [V], init: -1e38}",
        "m = maximum(m + w, k)\nd = exp(w + prev(m) - m)\ne = exp(k - m)\n"
        "a = d * a + e * v\nb = d * b + e",
        "n = maximum(prev(m), u + k)\nd = exp(prev(m) - n)\ne = exp(u + k - n)\n"
        "(d * prev(a) + e * v) / (d * prev(b) + e)",
    ),
    "vector_delta": (
        "x: K, k: K, g: K",
        "",
        "w: [K]",
        "w = exp(g) * w\nw = w + (dot(x, k) - dot(w, k)) * k",
        "w",
    ),
    "cell": (
        "z: D, f: D",
        "params w: D",
        "c: [D]",
        "s = sigmoid(f + w * c)\nc = s * c + (1 - s) * tanh(z)",
        "c",
    ),
    "fast_rnn": (
        "q: D, k: D, v: D, kr: D, vr: D, beta: scalar, betar: scalar",
        "",
        "W: [D, D], R: [D, D], h: [D]",
        "W = W + beta * outer(v - W @ k, k)\nR = R + betar * outer(vr - R @ kr, kr)\n"
        "h = W @ q + R @ softmax(h)",
        "h",
    ),
    "stacked": (
        "q: K, k: K, v: 3*D + 1, beta: scalar",
        "",
        "W1: [3*D + 1, K], W2: [D, D]",
        "W1 = W1 + beta * outer(v - W1 @ k, k)\nr = W1 @ q\nk2 = softmax(r[D:2*D])\n"
        "W2 = W2 + sigmoid(r[3*D]) * outer(r[2*D:3*D] - W2 @ k2, k2)",
        "W2 @ softmax(r[0:D])",
    ),
    "traces": (
        "q: K, k: K, v: V, gamma: K, b: V",
        "buffers omega: J",
        "kt: [J, K], vt: [J, V]",
        "c = cos(omega * (t + 1))\nkt = kt * row(1 - gamma) + outer(c, gamma * k)\n"
        "vt = vt * row(1 - b) + outer(c, b * v)",
        "(kt @ q) @ vt",
    ),
    "token_shift": (
        QKV,
        "params w: K",
        "W: [V, K], last: [K]",
        "kk = w * k + (1 - w) * last\nW = W + outer(v, kk)\nlast = k",
        "W @ q",
    ),
    "test_time": (
        "q: D, k: D, v: D, eta: scalar",
        "params w: D",
        "W: {dims: [D, D], init: param}, c: {dims: [D], init: param}",
        "e = layernorm(W @ k + c) * w - v\nW = W - eta * outer(e, k)\nc = c - eta * e",
        "W @ q + c",
    ),
    "cube": (
        "s: S, r: R, c: D, beta: scalar",
        "",
        "F: [S, R, D]",
        'u = einsum("ijk,i,j->k", F, s, r)\n'
        'F = F + beta * einsum("i,j,k->ijk", s, r, c - u)\nF = F / maximum(1, norm(F))',
        'layernorm(einsum("ijk,i,j->k", F, s, r))',
    ),
    "second_round": (
        f"{QKV}, beta: scalar",
        "",
        "W: [K, K]",
        "W = W + beta * outer(k - W @ k, k)",
        "W @ tanh(W @ q)",
    ),
    "matrix_output": (QKV, "", "W: [V, K]", "W = 0.5 * W + outer(v, k)", "tanh(W) + prev(W)"),
    "swap": (
        QKV,
        "",
        "W: [V, K], U: [V, K]",
        "A = W\nW = U + outer(v, k)\nU = A",
        "W @ q",
    ),
    "counter": ("x: K", "", "n: scalar, s: [K]", "n = n + 1\ns = s + (x - s) / n", "s"),
    "symmetric": ("k: K", "", "W: [K, K]", "W = 0.4 * (W + W.T) + outer(k, k)", "W @ k"),
    "matrix_gate": (
        QKV,
        "params P: [V, K]",
        "W: [V, K]",
        "W = sigmoid(P) * W + outer(v, k)",
        "W @ q",
    ),
    "constants": (QKV, "", "W: [V, K]", "W = 0.9 * W + row(k) + 0.1", "W @ q"),
    "two_sided_reads": (QKV, "", "W: [V, K]", "W = 0.9 * W + outer(v, k)", "W @ (W.T @ v)"),
    "squared_state": (QKV, "", "W: [V, K]", "W = W - 0.1 * W * W + outer(v, k)", "W @ q"),
    "late_use": (
        QKV,
        "",
        "W: [V, K]",
        "W = W + outer(v, k)\nm = tanh(W)\nW = 0.9 * W",
        "m @ q + W @ k",
    ),
    "many_queries": (
        "q: [N, K], k: K, v: V",
        "",
        "W: [V, K]",
        "W = W + outer(v, k)",
        "sum(W @ q.T, axis=1)",
    ),
    "no_memory": (QKV, "", "W: [V, K]", "W = outer(v, k)", "prev(W) @ q"),
    "three_rounds": (
        QKV,
        "",
        "W: [K, K]",
        "W = W + outer(k - W @ k, k)",
        "W @ (W @ (W @ q))",
    ),
}

LOW = "identity plus low rank"
# name: (class per state, axis and rank of the first state, whether the chunk form is legal)
CLASSES = {
    "sum": ({"W": "identity"}, None, 0, True),
    "gate_of_input": ({"W": "scalar decay"}, None, 0, True),
    "delta_in_two_terms": ({"W": LOW}, None, 1, True),
    "delta_as_product": ({"W": "diagonal plus low rank"}, "key", 1, True),
    "outer_first": ({"W": "diagonal plus low rank"}, "key", 1, True),
    "erase_and_write": ({"W": "diagonal plus low rank"}, "key", 1, True),
    "steps": ({"W": "scalar decay plus low rank"}, None, 3, True),
    "oja": ({"W": "diagonal plus low rank"}, "value", 1, False),
    "bonus_after": ({"W": "diagonal decay"}, "key", 0, True),
    "keep": ({"W": "scalar decay"}, None, 0, True),
    "longhorn": ({"W": "elementwise decay"}, None, 0, False),
    "two_sided_gate": ({"W": "affine"}, None, 0, False),
    "squashed": ({"W": "nonlinear"}, None, 0, False),
    "projected": ({"W": "nonlinear"}, None, 0, False),
    "momentum": ({"W": "affine", "M": "affine"}, None, 0, False),
    "value_gate": ({"W": "affine"}, None, 0, False),
    "mixed_rows": ({"W": "affine"}, None, 0, False),
    "left_product": ({"W": "affine"}, None, 0, False),
    "right_product": ({"W": "affine"}, None, 0, False),
    "both_axes": ({"W": "affine"}, None, 0, False),
    "masked": ({"W": "affine"}, None, 0, False),
    "detached": ({"W": "affine"}, None, 0, False),
    "matrix_write": ({"W": "affine"}, None, 0, False),
    "normaliser": ({"W": "scalar decay", "z": "scalar decay"}, None, 0, True),
    "matrix_lstm": ({"W": "scalar decay", "n": "scalar decay", "m": "running max"}, None, 0, True),
    "running_max": (
        {"m": "running max", "a": "diagonal decay", "b": "diagonal decay"},
        "key",
        0,
        False,
    ),
    "vector_delta": ({"w": "diagonal plus low rank"}, "key", 1, False),
    "cell": ({"c": "nonlinear"}, None, 0, False),
    "fast_rnn": ({"W": LOW, "R": LOW, "h": "nonlinear"}, None, 1, False),
    "stacked": ({"W1": LOW, "W2": LOW}, None, 1, True),
    "traces": ({"kt": "diagonal decay", "vt": "diagonal decay"}, "key", 0, False),
    "token_shift": ({"W": "identity", "last": "scalar decay"}, None, 0, True),
    "test_time": ({"W": "nonlinear", "c": "nonlinear"}, None, 0, False),
    "cube": ({"F": "nonlinear"}, None, 0, False),
    "second_round": ({"W": LOW}, None, 1, True),
    "matrix_output": ({"W": "scalar decay"}, None, 0, False),
    "swap": ({"W": "affine", "U": "affine"}, None, 0, False),
    "counter": ({"n": "identity", "s": "scalar decay"}, None, 0, False),
    "symmetric": ({"W": "affine"}, None, 0, False),
    "matrix_gate": ({"W": "elementwise decay"}, None, 0, False),
    "constants": ({"W": "scalar decay"}, None, 0, True),
    "two_sided_reads": ({"W": "scalar decay"}, None, 0, False),
    "squared_state": ({"W": "nonlinear"}, None, 0, False),
    "late_use": ({"W": "scalar decay"}, None, 0, False),
    "no_memory": ({"W": "scalar decay"}, None, 0, True),
    "three_rounds": ({"W": LOW}, None, 1, False),
}


def text(name: str) -> str:
    inputs, tensors, states, update, output = RULES[name]
    kind, _, entries = tensors.partition(" ")
    extra = f"{kind}: {{{entries}}}\n" if tensors else ""
    blocks = "".join(
        f"{key}: |\n{textwrap.indent(body, '  ')}\n"
        for key, body in (("update", update), ("output", output))
    )
    return f"name: {name}\ninputs: {{{inputs}}}\n{extra}state: {{{states}}}\n{blocks}"
