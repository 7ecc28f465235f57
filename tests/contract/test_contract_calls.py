"""What a call takes and gives: shapes, states, positions, heads, empty calls, options."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import problems
from contract_rules import (
    NAMES,
    PACKED,
    check,
    compiled,
    one_by_one,
    packed_problem,
    result,
    with_sizes,
    witness,
)
from fwgen.errors import ArgumentError, UnsupportedError
from fwgen.runtime.op import CompiledRule
from witnesses import Witness

POSITIONED = [n for n in NAMES if witness(n).uses_position]


class Intercepted(TorchDispatchMode):
    """Sends calls to the registered operators."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def arguments(p: problems.Problem) -> dict:
    """The groups of a call, as keywords."""
    groups = {"params": p.params, "buffers": p.buffers, "initial_state": p.initial}
    if p.position is not None:
        groups["position"] = p.position
    return groups


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 9, 3), (17, 15, 16), (33, 8, 5)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_any_sizes(name, sizes, poisoned):
    """No multiple of anything is asked for; the head dim of a vector state is one of them."""
    K, V, D = sizes
    w = with_sizes(witness(name), K=K, V=V, D=D)
    p = problems.draw(w, 6, B=1, H=2)
    want, near = (
        problems.collect(p.to(t), lambda q: problems.run_witness(w, q))
        for t in (torch.float64, torch.float32)
    )
    problems.compare(result(name, p), want, near, torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_dtypes(name):
    w = witness(name)
    for dtype in (torch.float32, torch.float64):
        p = problems.draw(w, 5).to(dtype)
        y, final = problems.run_op(compiled(name), p)
        assert y.shape == p.weights["y"].shape and y.dtype == dtype
        assert list(final) == list(w.states)
        for state, tensor in final.items():
            assert tensor.shape == p.weights[f"final.{state}"].shape and tensor.dtype == dtype
        nothing = compiled(name)(*p.inputs.values(), **arguments(p))[1]
        assert nothing is None


@pytest.mark.parametrize("name", NAMES)
def test_keywords_are_positions(name):
    p = problems.draw(witness(name), 4)
    op, names = compiled(name), list(p.inputs)
    want, _ = op(*p.inputs.values(), **arguments(p))
    reverse = {n: p.inputs[n] for n in reversed(names)}
    mixed = {n: p.inputs[n] for n in reversed(names[1:])}
    assert torch.equal(op(**reverse, **arguments(p))[0], want)
    assert torch.equal(op(p.inputs[names[0]], **mixed, **arguments(p))[0], want)


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_a_call(name):
    """Outputs, states and gradients; `position` goes on where the last step stopped."""
    w, op = witness(name), compiled(name)
    p = problems.draw(w, 5)

    def stepped(q: problems.Problem):
        state, outputs = q.initial, []
        for t in range(5):
            at = {} if q.position is None else {"position": q.position + t}
            y, state = op.step(
                *(x[:, t] for x in q.inputs.values()),
                state=state,
                params=q.params,
                buffers=q.buffers,
                **at,
            )
            outputs.append(y)
        return torch.stack(outputs, 1), state

    want, near = (
        problems.collect(p.to(t), lambda q: problems.run_witness(w, q))
        for t in (torch.float64, torch.float32)
    )
    problems.compare(problems.collect(p, stepped), want, near, torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_makes_new_tensors(name):
    """States are functional: what was passed is neither changed nor handed back."""
    w, op = witness(name), compiled(name)
    p = problems.draw(w, 1)
    state = {n: t.clone() for n, t in problems.first_states(w, p).items()}
    before = {n: t.clone() for n, t in state.items()}
    at = {} if p.position is None else {"position": p.position}
    one = [x[:, 0] for x in p.inputs.values()]
    y, new = op.step(*one, state=state, params=p.params, buffers=p.buffers, **at)
    assert all(torch.equal(state[n], before[n]) for n in state)
    given = {t.data_ptr() for t in (*one, *state.values(), *p.params.values())}
    assert given.isdisjoint(t.data_ptr() for t in (y, *new.values()))


@pytest.mark.parametrize("name", NAMES)
def test_positions_of_each_sequence(name, poisoned):
    """An int serves all, an int64 tensor each sequence; rules without `t` take both."""
    w = witness(name)
    p = replace(problems.draw(w, 7), position=None)
    starts = [4, 11]

    def rows(q: problems.Problem):
        found = []
        for b, start in enumerate(starts):
            one = q.map(lambda t, b=b: t[b : b + 1] if t.shape[0] == 2 else t)
            found.append(problems.run_witness(w, replace(one, position=start)))
        ys, finals = zip(*found, strict=True)
        return torch.cat(ys), {n: torch.cat([f[n] for f in finals]) for n in w.states}

    check(name, p, run=rows, position=torch.tensor(starts))
    same = [
        problems.run_op(compiled(name), p, position=at)[0]
        for at in (4, torch.tensor([4, 4]), torch.tensor([4, 0, 4, 0])[::2])
    ]
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], same[2])


@pytest.mark.parametrize("name", POSITIONED)
def test_a_carried_state_needs_its_position(name):
    w, op = witness(name), compiled(name)
    p = replace(problems.draw(w, 1), position=None)
    state = problems.first_states(w, p)
    token = [x[:, 0] for x in p.inputs.values()]
    groups = {"params": p.params, "buffers": p.buffers}
    roads: list[Callable[[], object]] = [
        lambda: op(*p.inputs.values(), initial_state=state, **groups),
        lambda: op.reference(*p.inputs.values(), initial_state=state, **groups),
        lambda: op.plan(*p.inputs.values(), initial_state=state, **groups),
        lambda: op.step(*token, state=state, **groups),
    ]
    for road in roads:
        with pytest.raises(ArgumentError, match="position"):
            road()
    op(*p.inputs.values(), **groups)  # a fresh sequence starts at 0
    op.step(*token, **groups)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences(name, kind, poisoned):
    """Also with a position for each, boundaries with gaps in memory."""
    w = witness(name)
    p = packed_problem(w, PACKED)
    bounds = torch.tensor([b for b in PACKED for _ in range(2)], dtype=kind)[::2]
    check(name, p, run=one_by_one(w, PACKED), cu_seqlens=bounds)
    if w.uses_position:
        at = [7 * n for n in range(len(PACKED) - 1)]
        p = replace(p, position=None)
        run = one_by_one(w, PACKED, at)
        check(name, p, run=run, cu_seqlens=bounds, position=torch.tensor(at))


def heads_of(p: problems.Problem, few: dict[str, int]) -> problems.Problem:
    """The first heads of some inputs."""
    return replace(p, inputs={n: t[:, :, : few.get(n, 4)].clone() for n, t in p.inputs.items()})


def repeated(w: Witness):
    """The witness on inputs whose heads are repeated in blocks."""

    def run(q: problems.Problem):
        wide = {n: t.repeat_interleave(4 // t.shape[2], 2) for n, t in q.inputs.items()}
        return problems.run_witness(w, replace(q, inputs=wide))

    return run


@pytest.mark.parametrize("name", NAMES)
def test_grouped_heads(name, poisoned):
    """Head h reads input head h // (H / H_in), whichever inputs have fewer."""
    w = witness(name)
    p = problems.draw(w, 6, H=4)
    first, *middle, last = w.inputs
    several = dict.fromkeys(middle, 2) | {last: 1}
    for few in ({first: 1}, {first: 2, **dict.fromkeys(middle, 1)}, several):
        check(name, heads_of(p, few), run=repeated(w))


def rounded(p: problems.Problem, dtype: torch.dtype) -> problems.Problem:
    """Inputs, and weights of the output, in a half type."""
    q = p.to(dtype)
    return replace(p, inputs=q.inputs, weights={**p.weights, "y": q.weights["y"]})


@pytest.mark.parametrize("name", NAMES)
def test_grouped_half_gradients_are_rounded_once(name):
    """They are added in float32, in order of the heads."""
    w = witness(name)
    others = list(w.inputs)[1:]
    p = rounded(problems.draw(w, 6, H=4).to(torch.float32), torch.bfloat16)
    p = heads_of(p, dict.fromkeys(others, 1))
    spread = {n: t.expand(-1, -1, 4, *t.shape[3:]) for n, t in p.inputs.items()}
    wide = replace(p, inputs=spread).to(torch.float32)
    got, full = result(name, p), result(name, wide)
    for n in (n for n in others if f"d.{n}" in got):
        parts = full[f"d.{n}"].float().unbind(2)
        total = ((parts[0] + parts[1]) + parts[2]) + parts[3]
        assert torch.equal(got[f"d.{n}"][:, :, 0], total.bfloat16().double()), n


def empty_calls(w: Witness) -> dict[str, tuple[problems.Problem, dict]]:
    """Calls without tokens, sequences, or both."""
    packed = packed_problem(w, [0, 0, 0])
    none = problems.draw(w, 0, B=0)
    alone = {"cu_seqlens": torch.tensor([0])}
    return {
        "no tokens": (problems.draw(w, 0), {}),
        "no rows": (problems.draw(w, 3, B=0), {}),
        "neither": (none, {}),
        "empty sequences": (packed, {"cu_seqlens": torch.tensor([0, 0, 0])}),
        "no sequences": (replace(packed_problem(w, [0]), initial=None), alone),
    }


@pytest.mark.parametrize("road", ["plain", "operator"])
@pytest.mark.parametrize("name", NAMES)
def test_empty_calls(name, road, poisoned):
    """Outputs, final states and gradients are those of the loop; nothing is NaN or shared."""
    w, op = witness(name), compiled(name)
    for kind, (p, options) in empty_calls(w).items():

        def run(q, options=options, **more):
            if road == "operator":
                with Intercepted():
                    return problems.run_op(op, q, **options, **more)
            return problems.run_op(op, q, **options, **more)

        got = problems.collect(p, run)
        want = problems.collect(p, lambda q, r=run: r(q, backend="reference"))
        problems.compare(got, want, want, torch.float64)
        for state, start in problems.first_states(w, p).items():
            final = got[f"final.{state}"]
            assert final.shape == p.weights[f"final.{state}"].shape, kind
            if "cu_seqlens" not in options or p.initial:
                assert torch.equal(final, start.double()), kind
        given = {t.data_ptr() for t in (p.initial or {}).values() if t.numel()}
        y, final = run(p)
        assert given.isdisjoint(t.data_ptr() for t in (y, *final.values()) if t.numel()), kind


WHOLE = torch.int64
FAULTS = {
    "chunk_size": [0, 48, 16.0, "16", True, (16,)],
    "form": ["parallel", None, 1, ["auto"]],
    "backend": ["gpu", None, 0, ["cpu"]],
    "output_final_state": ["yes", 1, None],
    "position": [
        *(-1, True, 1.5, 2**70, "0", [0, 0]),
        torch.zeros(2),
        torch.zeros(3, dtype=WHOLE),
        torch.zeros(2, dtype=torch.int32),
        torch.tensor(0),
        torch.zeros(2, 1, dtype=WHOLE),
        torch.tensor([0, -1]),
    ],
    "cu_seqlens": [[0, 5], 5, torch.zeros(2), torch.tensor(0), torch.tensor([0, 5])],
}


def roads(op: CompiledRule, p: problems.Problem) -> dict[str, Callable[..., object]]:
    """Everything that takes the arguments of a call."""
    given = list(p.inputs.values())

    def intercepted(**options):
        with Intercepted():
            return op(*given, **options)

    found = {
        "call": lambda **o: op(*given, **o),
        "operator": intercepted,
        "reference": lambda **o: op.reference(*given, **o),
        "plan": lambda **o: op.plan(*given, **o),
    }
    if given[0].shape[1]:
        found["step"] = lambda **o: op.step(*(x[:, 0] for x in given), **o)
    return found


@pytest.mark.parametrize("shape", [(3, 2), (0, 2)], ids=["tokens", "no tokens"])
@pytest.mark.parametrize("name", ["gated_delta", "everything"])
def test_options_are_judged_on_every_road(name, shape):
    """Whether or not the call would use them, and after a good call that equals the bad one."""
    p = problems.draw(witness(name), shape[0], B=shape[1], initial=False)
    groups = {"params": p.params, "buffers": p.buffers}
    for road, run in roads(compiled(name), p).items():
        known = set(FAULTS) - ({"backend"} if road == "reference" else set())
        if road == "step":
            known = {"position", "backend"}
        else:
            run(**groups, chunk_size=16)
            run(**groups, form="recurrent", position=0)
        for option in sorted(known):
            for bad in FAULTS[option]:
                with pytest.raises(ArgumentError, match=option):
                    run(**groups, **{option: bad})


@pytest.mark.parametrize("size", [16, 32, 64, 128])
@pytest.mark.parametrize("form", ["auto", "recurrent"])
def test_chunk_size_is_taken_in_every_form(size, form):
    """Also by the recurrent one, which has no use for it, and for fewer tokens than a chunk has."""
    p = problems.draw(witness("gated_delta"), 3)
    op = compiled("gated_delta")
    plain = problems.run_op(op, p)[0]
    sized = problems.run_op(op, p, form=form, chunk_size=size)[0]
    torch.testing.assert_close(sized, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_part_of_the_states(name):
    """The others start as usual; what replaces a learned start leaves it without a gradient."""
    w, op = witness(name), compiled(name)
    p = problems.draw(w, 4)
    whole = problems.draw(replace(w, learned=False), 4).initial
    assert whole is not None
    for state in w.states:
        fresh = problems.first_states(w, replace(p, initial=None))
        q = replace(p, initial=fresh | {state: whole[state]})
        want = problems.collect(q, lambda r: problems.run_witness(w, r))
        one = replace(p, initial={state: whole[state]})
        got = problems.collect(one, lambda r: problems.run_op(op, r))
        shared = {n: t for n, t in want.items() if n in got and n != f"d.params.{state}"}
        cut = {f"d.params.{s}" for s in w.states if w.learned}
        for n in shared.keys() - cut:
            problems.assert_close(n, got[n], want[n], 1e-10 * float(want[n].abs().max()) + 1e-12)
        assert not w.learned or not got[f"d.params.{state}"].any()


def test_no_silent_fallback():
    """What no kernel serves is refused, with the keyword that would serve."""
    p = problems.draw(witness("fwp_additive_tanh"), 3)
    op = compiled("fwp_additive_tanh")
    assert op.plan(*p.inputs.values())["backend"] == "cpu"
    for road, run in roads(op, p).items():
        if road != "step":
            with pytest.raises(UnsupportedError, match="recurrent"):
                run(form="chunk")
