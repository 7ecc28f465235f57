"""The Triton kernels under PyTorch's compiler; cases in traced.py, run by Triton's interpreter."""

import pytest
from forms import FORMS
from test_recurrent import interpreted

pytestmark = pytest.mark.triton
RULES = ["deltanet", "gla", "mlstm", "kda"]
"""One that keeps a value of every token on CPUs, one that keeps nothing, two that keep states."""


@pytest.mark.parametrize("form", FORMS)
def test_traced(form):
    rows = interpreted("traced.py", form, *RULES)
    assert {name for name, *_ in rows} == {*RULES} and len(rows) == 15 * len(RULES)
    assert [row for row in rows if row[-1]] == []
