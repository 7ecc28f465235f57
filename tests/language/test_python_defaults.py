"""A parameter with a default would promise that an input may be left out."""

from __future__ import annotations

import pytest

import fwgen
from fwgen.errors import RuleError


def test_a_parameter_has_no_default() -> None:
    with pytest.raises(RuleError, match="`v` has a default, which no input can have"):

        @fwgen.rule(inputs={"k": "K", "v": "V"}, state={"W": "V K"})
        def small(k, v=1):  # type: ignore[no-untyped-def]
            W = W + outer(v, k)  # noqa: F821
            return W @ k
