"""Options are judged wherever they are passed, and what cannot be served is refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import problems
from contract_rules import NAMES, Intercepted, compiled, witness
from fwgen.errors import ArgumentError, UnsupportedError
from fwgen.runtime.op import CompiledRule

POSITIONED = [n for n in NAMES if witness(n).uses_position]
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


def test_no_silent_fallback():
    """What no kernel serves is refused, with the keyword that would serve."""
    p = problems.draw(witness("fwp_additive_tanh"), 3)
    op = compiled("fwp_additive_tanh")
    assert op.plan(*p.inputs.values())["backend"] == "cpu"
    for road, run in roads(op, p).items():
        if road != "step":
            with pytest.raises(UnsupportedError, match="recurrent"):
                run(form="chunk")


def test_kinds_of_errors():
    assert issubclass(ArgumentError, ValueError) and issubclass(UnsupportedError, RuntimeError)
