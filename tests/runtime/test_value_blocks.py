"""Values in blocks: what runs as heads of its own is the same call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fwgen
import problems
from contract_rules import compiled, packed_problem, with_sizes, witness
from fwgen.runtime import value_blocks
from fwgen.runtime.geometry import Layout
from witnesses import WITNESSES

PARTED = sorted(name for name in WITNESSES if compiled(name).signature.parallel_dim)
SAMPLE = ["deltanet", "elstm", "fwp_additive_tanh", "gla", "rwkv4", "rwkv7", "titans"]


def wide(name, values: int = 128):
    """The witness with many values, and few of all else."""
    w = witness(name)
    return with_sizes(w, **{compiled(name).signature.parallel_dim: values})


@pytest.fixture
def counts(monkeypatch):
    """How many blocks each call that was prepared has."""
    found = []
    plain = value_blocks.block_count

    def noted(*arguments):
        found.append(plain(*arguments))
        return found[-1]

    monkeypatch.setattr(value_blocks, "block_count", noted)
    return found


def whole(monkeypatch, name, p, **options):
    """The results without blocks."""
    op = compiled(name)
    prepared = (op._ready, op._kernels._forward, op._kernels._backward)
    with monkeypatch.context() as patch:
        patch.setattr(value_blocks, "TASKS", 0)
        for known in prepared:
            known.clear()
        found = problems.collect(p, lambda q: problems.run_op(op, q, **options))
    for known in prepared:
        known.clear()
    return found


def test_which_rules_have_values_that_nothing_joins():
    assert {"deltanet", "gated_delta", "gla", "sum", "rwkv7", "mamba2", "elstm"} <= set(PARTED)
    # a learned norm over the values, states without values, a read of the values by the keys
    assert not {"ttt_linear", "linear_attention", "recurrent_delta", "srwm"} & set(PARTED)


READS = {
    "values alone": ("W @ q", "V"),
    "one of the values": ("v[0] * (W @ q)", None),
    "a number of one of the values": ("first * (W @ q)", None),
    "the last value": ("(W @ q) + v[size(V) - 1]", None),
    "neighbours": ("W @ q + roll(v, 1)", None),
    "all values": ("W @ q * sum(v)", None),
    "how many values": ("W @ q / size(V)", None),
    "where a value is": ("(W @ q) * concat(v[0:1], v[1:size(V)])", None),
}


@pytest.mark.parametrize("name", READS)
def test_what_joins_values(name, tmp_path):
    output, dim = READS[name]
    path = tmp_path / "reads.yaml"
    line = "  first = tanh(v[0])\n" if "first" in output else ""
    path.write_text(
        "name: reads\ninputs: {q: K, k: K, v: V}\nstate: {W: [V, K]}\n"
        f"update: W = 0.9 * W + outer(v, k)\noutput: |\n{line}  {output}\n"
    )
    op = fwgen.compile(path)
    assert op.signature.parallel_dim == dim
    x = [torch.randn(1, 300, 1, n) for n in (4, 4, 128)]
    torch.testing.assert_close(op(*x)[0], op.reference(*x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SAMPLE)
def test_blocks_are_the_same_call(name, counts, monkeypatch, poisoned):
    w = wide(name)
    p = problems.draw(w, B=2, T=130, H=1, seed=1).to(torch.float32)
    problems.check_op(compiled(name), w, p, torch.float32)
    assert set(counts) == {2}
    got = problems.collect(p, lambda q: problems.run_op(compiled(name), q))
    for key, value in whole(monkeypatch, name, p).items():
        torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTED)
@pytest.mark.parametrize("values", [128, 256, 384])
def test_blocks_of_every_rule(name, values, counts, poisoned):
    w = wide(name, values)
    problems.check_op(compiled(name), w, problems.draw(w, B=1, T=257, H=1, seed=2), torch.float64)
    assert counts and min(counts) > 1


@pytest.mark.parametrize("name", SAMPLE)
def test_packed_sequences_in_blocks(name, counts, monkeypatch, poisoned):
    p = packed_problem(wide(name), [0, 0, 100, 101, 260]).to(torch.float32)
    p = replace(p, inputs={n: t[:, :, :1] for n, t in p.inputs.items()})
    bounds = torch.tensor([0, 0, 100, 101, 260])
    cut = {n: t[:, :, :1] if n == "y" else t[:, :1] for n, t in p.weights.items()}
    heads = {n: t[:1] for n, t in p.params.items()}
    initial = p.initial and {n: t[:, :1] for n, t in p.initial.items()}
    buffers = {n: t[:1] for n, t in p.buffers.items()}
    p = replace(p, weights=cut, params=heads, initial=initial, buffers=buffers)
    got = problems.collect(p, lambda q: problems.run_op(compiled(name), q, cu_seqlens=bounds))
    assert set(counts) == {2}
    for key, value in whole(monkeypatch, name, p, cu_seqlens=bounds).items():
        torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-4)


def test_keys_that_heads_share(counts, monkeypatch):
    """One key head for two value heads of two blocks each."""
    p = problems.draw(wide("gated_delta"), B=1, T=300, H=2, seed=3).to(torch.float32)
    p = replace(p, inputs={n: t[:, :, :1] if n in "qk" else t for n, t in p.inputs.items()})
    got = problems.collect(p, lambda q: problems.run_op(compiled("gated_delta"), q))
    assert set(counts) == {2}
    for key, value in whole(monkeypatch, "gated_delta", p).items():
        torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-4)


def test_values_that_heads_share_are_not_parted(counts):
    p = problems.draw(wide("gated_delta"), B=1, T=300, H=2, seed=3).to(torch.float32)
    p = replace(p, inputs={n: t[:, :, :1] if n == "v" else t for n, t in p.inputs.items()})
    problems.collect(p, lambda q: problems.run_op(compiled("gated_delta"), q))
    assert set(counts) == {1}


def test_what_is_short_or_has_heads_enough_is_not_parted(counts):
    for B, T, H in ((1, 255, 1), (8, 300, 1), (2, 300, 4)):
        w = wide("deltanet")
        problems.collect(
            problems.draw(w, B=B, T=T, H=H, seed=4).to(torch.float32),
            lambda q: problems.run_op(compiled("deltanet"), q),
        )
    assert set(counts) == {1}


def test_bits_do_not_depend_on_threads(threads):
    p = problems.draw(wide("deltanet", 128), B=1, T=300, H=1, seed=5).to(torch.float32)
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(problems.collect(p, lambda q: problems.run_op(compiled("deltanet"), q)))
    for other in found[1:]:
        assert all(torch.equal(found[0][key], other[key]) for key in found[0])


def test_the_layout_is_that_of_calls():
    signature = compiled("deltanet").signature
    geometry = None
    blocks = value_blocks.Blocks(signature, Layout.of(signature), geometry, 2)
    assert len(blocks.axes()) == Layout.of(signature).length
