"""What a call takes and gives: shapes, states, positions, heads, empty calls, options."""

from dataclasses import replace

import pytest
import torch

import problems
from contract_rules import (
    NAMES,
    PACKED,
    Intercepted,
    check,
    compiled,
    one_by_one,
    packed_problem,
    result,
    with_sizes,
    witness,
)
from witnesses import Witness


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


@pytest.mark.parametrize("name", NAMES)
def test_init_state_is_the_default(name):
    """Of the right shapes and types, learned starts included; a call from it has the same bits."""
    w, op = witness(name), compiled(name)
    for dtype in (torch.float32, torch.float64):
        p = problems.draw(w, 4, initial=False).to(dtype)
        state = op.init_state(2, 3, w.sizes(), params=p.params, dtype=dtype, device="cpu")
        assert list(state) == list(w.states)
        assert all(t.dtype == dtype for t in state.values())
        at = {} if p.position is None else {"position": p.position}
        groups = {"params": p.params, "buffers": p.buffers, **at}
        fresh = op(*p.inputs.values(), **groups)[0]
        assert torch.equal(op(*p.inputs.values(), initial_state=state, **groups)[0], fresh)
        one = [x[:, 0] for x in p.inputs.values()]
        assert torch.equal(op.step(*one, state=state, **groups)[0], op.step(*one, **groups)[0])
