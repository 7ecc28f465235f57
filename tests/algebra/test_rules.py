"""The derived backward of every shipped rule against differences of its own token loop."""

from __future__ import annotations

import pytest

from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.ir.nodes import Apply, Step
from fwgen.ir.text import statement_text
from fwgen.ir.verify import verify
from fwgen.ir.walk import scalars
from fwgen.language import list_rules, load_rule, lower
from sequences import assert_gradients, draw

FREE = {"K": 3, "V": 2, "D": 3}
"""Sizes by name; every other free dim is 4."""


def _sizes(step: Step) -> dict[str, int]:
    names = sorted({name for a in step.arrays for dim in a.dims for name in dim.names})
    return {name: FREE.get(name, 4) for name in names}


@pytest.mark.parametrize("name", list_rules())
def test_gradients(name: str) -> None:
    step = lower(load_rule(name))
    hoisted = hoist(step)
    verify(hoisted, "hoist")
    backward = differentiate(hoisted)
    verify(backward, "backward")
    assert_gradients(step, backward, draw(step, _sizes(step), 3, seed=1, position=2), seed=2)


@pytest.mark.parametrize("name", list_rules())
def test_no_trivial_arithmetic(name: str) -> None:
    """No factor 1, no term 0, no double negation, no product of two constants."""
    backward = differentiate(hoist(lower(load_rule(name))))
    for statement in backward.statements:
        for node in scalars(statement.body):
            if isinstance(node, Apply) and node.op in ("add", "mul", "neg"):
                values = [getattr(argument, "value", None) for argument in node.args]
                inner = [argument.op for argument in node.args if isinstance(argument, Apply)]
                text = statement_text(statement)
                assert node.op != "neg" or "neg" not in inner, text
                assert node.op != "mul" or 1 not in values, text
                assert node.op != "add" or 0 not in values, text
                assert sum(value is not None for value in values) <= 1, text
