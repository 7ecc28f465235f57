"""The text of generated Triton modules, and the choice of the axis that is split over programs."""

import ast

import pytest
from interpreted import (
    DELTA,
    EPILOGUE,
    MATRICES,
    MOVES,
    NAMES,
    NORMALISED,
    SHARED,
    SQUASHED,
    THIRD,
    WIDE,
    read,
)

from fwgen.algebra.backward import differentiate
from fwgen.emit.triton import triton_sources
from fwgen.emit.triton.lanes import never_negative
from fwgen.emit.triton.places import solve
from fwgen.errors import UnsupportedError
from fwgen.ir.dims import ONE, Dim
from fwgen.ir.nodes import Index, Var
from fwgen.language import lower
from fwgen.runtime.triton_backend import load_module
from fwgen.schedule.axes import tiling

RULES = (DELTA, SQUASHED, NORMALISED, EPILOGUE, MOVES, NAMES, MATRICES, WIDE, SHARED, THIRD)


FILES = ("triton_recurrent.py", "triton_large.py")


VECTORS = """
name: vectors
inputs: {a: V, x: V}
state: {h: V, m: {dims: V, init: -5}}
update: |
  h = sigmoid(a) * h + tanh(x)
  m = maximum(m, h)
output: h + m
"""


def source(text, file=FILES[0]):
    backward = differentiate(lower(read(text)))
    files = triton_sources(backward.forward, backward)
    assert tuple(files) == FILES
    return files[file]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("text", RULES)
def test_a_module_parses_and_stays_in_the_portable_subset(text, file):
    code = source(text, file)
    kernels = [n for n in ast.parse(code).body if isinstance(n, ast.FunctionDef)]
    names = {n.name for n in kernels if n.decorator_list}
    assert names >= {"recurrent_forward", "recurrent_step", "recurrent_backward"}
    for word in ("make_block_ptr", "libdevice", "atomic", "tl.gather", "{{", "{%"):
        assert word not in code
    assert "\t" not in code and not any(line != line.rstrip() for line in code.splitlines())


@pytest.mark.parametrize("file", FILES)
def test_the_same_rule_gives_the_same_text(file):
    assert source(MOVES, file) == source(MOVES, file)


def test_vector_states_are_never_large():
    backward = differentiate(lower(read(VECTORS)))
    assert list(triton_sources(backward.forward, backward)) == [FILES[0]]
    assert str(tiling(backward.forward, backward).dim) == "V"


def plans(file, sizes, direction):
    """The plan of DELTA's kernels."""
    module = load_module("delta", source(DELTA, file))
    return module.plan(**sizes, direction=direction), module.refusal(sizes, direction)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_plan_keeps_small_states_in_registers_and_large_ones_in_memory(direction):
    small, refusal = plans(FILES[0], {"K": 128, "V": 128}, direction)
    assert refusal == "" and small.tiles > 1
    _, refusal = plans(FILES[0], {"K": 2**17, "V": 1}, direction)
    assert "more than" in refusal
    large, refusal = plans(FILES[1], {"K": 2**15, "V": 64}, direction)
    assert refusal == "" and large.ROWS_K < 2**15


def test_a_module_holds_the_equations():
    code = source(DELTA)
    assert "sum_j" in ast.get_docstring(ast.parse(code))


@pytest.mark.parametrize(
    "text, dim",
    [(DELTA, "V"), (NORMALISED, "V"), (EPILOGUE, None), (SQUASHED, None), (MATRICES, None)],
)
def test_the_parallel_axis_is_one_that_nothing_sums_over(text, dim):
    backward = differentiate(lower(read(text)))
    found = tiling(backward.forward, backward)
    assert (found and str(found.dim)) == dim


def test_a_vector_state_beside_a_split_matrix_is_whole_in_every_tile():
    backward = differentiate(lower(read(NORMALISED)))
    found = tiling(backward.forward, backward)
    assert found.axis("W") == 0 and found.axis("z") is None


def test_sizes_are_at_least_one():
    assert never_negative(Dim.of("K") - 1) and never_negative(Dim.of(0))
    assert not never_negative(Dim.of("K") - 2) and not never_negative(Dim.of("K") - Dim.of("V"))


def test_an_index_that_meets_elements_twice_cannot_be_inverted():
    i, j = Var("i", Dim.of("K")), Var("j", Dim.of("K"))
    index = Index(((ONE, i), (ONE, j)))
    with pytest.raises(UnsupportedError, match="i \\+ j"):
        solve(index, Dim.of("V"), None)
