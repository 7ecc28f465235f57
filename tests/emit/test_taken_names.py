"""A user may call a tensor whatever the compiler would have called one of its own arrays."""

import re
from pathlib import Path

import pytest
import torch

import fwgen
import problems
from fwgen.driver import compile_rule
from witnesses import WITNESSES

RULES = ("gated_delta", "mamba2", "fwp_additive_tanh")


def generated(rule: fwgen.Rule) -> list[str]:
    """Names of arrays that the user did not write, those of the last stages first."""
    made = compile_rule(rule, targets=("cpu",))
    kernels = (made.plan.backward_kernel, made.plan.forward_kernel)
    names = [array.name for kernel in kernels for array in reversed(kernel.arrays)]
    written = set(re.findall(r"\w+", rule.text))
    return [name for name in dict.fromkeys(names) if name not in written and name.isidentifier()]


def renamed(rule: fwgen.Rule, names: dict[str, str], folder: Path) -> Path:
    """A file with the rule under other names."""
    path = folder / f"{rule.name}.yaml"
    text = re.sub(r"[A-Za-z_]\w*", lambda m: names.get(m[0], m[0]), rule.text)
    path.write_text(text, encoding="utf-8")
    return path


def accepted(rule: fwgen.Rule, word: str, folder: Path) -> bool:
    """Whether the language lets the word name an input."""
    try:
        fwgen.load_rule(renamed(rule, {next(iter(rule.inputs)): word}, folder))
    except fwgen.RuleError:
        return False
    return True


def check_renamed(
    rule: fwgen.Rule, names: dict[str, str], p: problems.Problem, want: dict, folder: Path
) -> None:
    """The same numbers, to the last bit, on CPU and in the reference."""
    op = fwgen.compile(renamed(rule, names, folder))
    got = problems.collect(p, lambda q: problems.run_op(op, q, backend="cpu"))
    eager = problems.collect(p, lambda q: problems.run_op(op, q, backend="reference"))
    for key, value in want.items():
        torch.testing.assert_close(got[key], value, rtol=0, atol=0, msg=f"{key}: {names}")
        torch.testing.assert_close(eager[key], value, rtol=1e-9, atol=1e-9, msg=f"{key}: {names}")


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
        check_renamed(plain, renaming, p, want, tmp_path)


def identifiers(text: str) -> list[str]:
    """The names in a text that a rule could give to a tensor, each once."""
    return list(dict.fromkeys(re.findall(r"\b[A-Za-z_]\w*", text)))


def check_words(name: str, source: str, folder: Path, every: int) -> None:
    """The rule with its inputs called like words of its own kernels, `every`-th group of them."""
    plain = fwgen.load_rule(name)
    p = problems.draw(WITNESSES[name], 5, B=1, H=2)
    want = problems.collect(p, lambda q: problems.run_op(fwgen.compile(plain), q, backend="cpu"))
    words = identifiers(compile_rule(plain).sources[source])
    mine = set(identifiers(plain.text))
    free = [word for word in words if word not in mine and accepted(plain, word, folder)]
    inputs = list(p.inputs)
    groups = range(0, len(free) - len(inputs), len(inputs))
    assert len(groups) > 3
    for first in groups[::every]:
        check_renamed(plain, dict(zip(inputs, free[first:], strict=False)), p, want, folder)


@pytest.mark.parametrize("source", ["cpu.cpp", "reference.py"])
def test_inputs_named_like_some_words_of_a_kernel(source, tmp_path):
    check_words("gla", source, tmp_path, every=24)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["cpu.cpp", "reference.py"])
@pytest.mark.parametrize("name", ["gated_delta", "fwp_additive_tanh"])
def test_inputs_named_like_words_of_a_kernel(name, source, tmp_path):
    check_words(name, source, tmp_path, every=1)
