"""A user may call a tensor whatever the compiler would have called one of its own arrays."""

import re

import pytest
import torch

import fwgen
import problems
from fwgen.driver import compile_rule
from witnesses import WITNESSES

RULES = ("gated_delta", "gla", "mamba2", "fwp_additive_tanh")


def generated(rule: fwgen.Rule) -> list[str]:
    """Names of arrays that the user did not write, those of the last stages first."""
    made = compile_rule(rule, targets=("cpu",))
    kernels = (made.plan.backward_kernel, made.plan.forward_kernel)
    names = [array.name for kernel in kernels for array in reversed(kernel.arrays)]
    written = set(re.findall(r"\w+", rule.text))
    return [name for name in dict.fromkeys(names) if name not in written and name.isidentifier()]


@pytest.mark.parametrize("name", RULES)
def test_inputs_named_like_generated_arrays(name, tmp_path):
    plain = fwgen.load_rule(name)
    w = WITNESSES[name]
    p = problems.draw(w, 5, B=1, H=2)
    want = problems.collect(p, lambda q: problems.run_op(fwgen.compile(plain), q, backend="cpu"))
    taken = generated(plain)
    inputs = list(p.inputs)
    assert len(taken) > len(inputs)
    for first in (0, len(taken) // 2):
        renaming = dict(zip(inputs, taken[first:], strict=False))
        text = re.sub(r"[A-Za-z_]\w*", lambda m, new=renaming: new.get(m[0], m[0]), plain.text)
        path = tmp_path / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        op = fwgen.compile(path)
        got = problems.collect(p, lambda q, op=op: problems.run_op(op, q, backend="cpu"))
        for key, value in want.items():
            torch.testing.assert_close(got[key], value, rtol=0, atol=0, msg=f"{key} {renaming}")
