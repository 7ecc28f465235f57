"""Phases that a gradient does not need are found from the statements, and their code is guarded."""

import re
from functools import cache

import pytest

import fwgen
from fwgen.driver import Compilation, compile_rule
from fwgen.schedule.needs import needs, results
from fwgen.schedule.plan import Kernel, Scan


@cache
def made(name: str) -> Compilation:
    return compile_rule(fwgen.load_rule(name), ["cpu"])


def scans(kernel: Kernel) -> list[tuple[int, frozenset[str]]]:
    """The sweep of each scan, and the results that need it."""
    return [
        (number, wanted)
        for number, (sweep, found) in enumerate(zip(kernel.sweeps, needs(kernel), strict=True))
        for phase, wanted in zip(sweep.phases, found, strict=True)
        if isinstance(phase, Scan)
    ]


def alone(name: str) -> dict[str, set[int]]:
    """For each result, the sweeps whose scan it needs."""
    kernel = made(name).plan.backward_kernel
    return {t: {n for n, wanted in scans(kernel) if t in wanted} for t in results(kernel)}


def test_two_passes_apart():
    """Queries need the states alone; values, rates and start states the adjoints alone."""
    found = alone("delta")
    assert found["grad q"] == {1} and found["grad k"] == {0, 1}
    assert found["grad v"] == found["grad beta"] == found["grad_state W"] == {0}


def test_pass_of_the_decays():
    """Only the decay needs the third one, and it needs all."""
    found = alone("gated_delta")
    assert found["grad g"] == {0, 1, 2}
    assert [t for t, sweeps in found.items() if 2 in sweeps] == ["grad g"]


def test_params_count_as_inputs():
    found = alone("mamba2")
    assert found["grad A_log"] == found["grad dt"] == {0, 1, 2}
    assert found["grad D"] == set(), "a product of output and input needs no state"


@pytest.mark.parametrize("name", fwgen.list_rules())
def test_every_gradient_is_behind_some_phase(name):
    kernel = made(name).plan.backward_kernel
    found = [wanted for sweep in needs(kernel) for wanted in sweep]
    assert frozenset().union(*found) == set(results(kernel))


@pytest.mark.parametrize("name", fwgen.list_rules())
def test_guards_are_where_something_can_be_left_out(name):
    """As many conditions as there are sets of gradients that are not all; none in the forward."""
    kernel = made(name).plan.backward_kernel
    found = needs(kernel)
    sets = {wanted for sweep in found for wanted in sweep}
    sets |= {frozenset().union(*sweep) for sweep in found}
    source = made(name).sources["cpu.cpp"]
    forward, backward = source.split("bool backward_head")
    assert "wanted_" not in forward
    limited = {wanted for wanted in sets if wanted} - {frozenset(results(kernel))}
    assert len(re.findall(r"const bool wanted_\d+_* =", backward)) == len(limited)
