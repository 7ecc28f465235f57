"""The text of generated Triton modules, and the choice of the axis that is split over programs."""

import ast

import pytest
from interpreted import DELTA, EPILOGUE, MATRICES, MOVES, NAMES, NORMALISED, SQUASHED, read

from fwgen.algebra.backward import differentiate
from fwgen.emit.triton import triton_sources
from fwgen.emit.triton.lanes import never_negative
from fwgen.emit.triton.places import solve
from fwgen.errors import UnsupportedError
from fwgen.ir.dims import ONE, Dim
from fwgen.ir.nodes import Index, Var
from fwgen.language import lower
from fwgen.schedule.axes import tiling

RULES = (DELTA, SQUASHED, NORMALISED, EPILOGUE, MOVES, NAMES, MATRICES)


def source(text):
    backward = differentiate(lower(read(text)))
    files = triton_sources(backward.forward, backward)
    assert list(files) == ["triton_recurrent.py"]
    return files["triton_recurrent.py"]


@pytest.mark.parametrize("text", RULES)
def test_a_module_parses_and_stays_in_the_portable_subset(text):
    code = source(text)
    kernels = [n for n in ast.parse(code).body if isinstance(n, ast.FunctionDef)]
    names = {n.name for n in kernels if n.decorator_list}
    assert names >= {"recurrent_forward", "recurrent_step", "recurrent_backward"}
    for word in ("make_block_ptr", "libdevice", "atomic", "tl.gather", "{{", "{%"):
        assert word not in code
    assert "\t" not in code and not any(line != line.rstrip() for line in code.splitlines())


def test_the_same_rule_gives_the_same_text():
    assert source(MOVES) == source(MOVES)


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
