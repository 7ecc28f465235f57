"""Every construct of the language, one small rule each, against plain PyTorch."""

from pathlib import Path

import pytest
import torch

import by_interpreter
import fwgen
import problems
from constructs import CONSTRUCTS, Construct
from fwgen.algebra.backward import differentiate
from fwgen.algebra.hoist import hoist
from fwgen.algebra.normal import normalise
from fwgen.emit.reference import reference_source
from fwgen.emit.signature import signature_of
from fwgen.language import lower
from fwgen.runtime.op import CompiledRule

SOME = ("einsum", "position", "functions_of_a_matrix", "kinks", "any_sign_keys_then_delta")
SOME += ("third_order", "start_values", "random_map")


def written(c: Construct, folder: Path) -> fwgen.Rule:
    path = folder / f"{c.name}.yaml"
    path.write_text(c.text, encoding="utf-8")
    return fwgen.load_rule(path, set=c.set, maps=c.maps)


def both(c: Construct, p: problems.Problem) -> tuple[dict, dict]:
    """The witness in float64, and in float32."""
    want = problems.collect(p, lambda q: problems.run_witness(c.witness, q))
    return want, problems.collect(p.to(torch.float32), lambda q: problems.run_witness(c.witness, q))


def without_kernels(rule: fwgen.Rule) -> CompiledRule:
    """The operator as far as the language, the algebra and the reference make it."""
    step = lower(rule)
    signature = signature_of(rule.hash, step, normalise(step), [differentiate(hoist(step))], ())
    return CompiledRule(signature, {"reference.py": reference_source(step)}, rule)


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_reference(name, tmp_path):
    c = CONSTRUCTS[name]
    p = problems.draw(c.witness, 5)
    op = without_kernels(written(c, tmp_path))
    got = problems.collect(p, lambda q: problems.run_op(op, q, backend="reference"))
    problems.compare(got, *both(c, p), torch.float64)


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_derived_backward(name, tmp_path):
    c = CONSTRUCTS[name]
    p = problems.draw(c.witness, 5, B=1, H=1)
    got = by_interpreter.collect(written(c, tmp_path), p, c.witness.sizes())
    problems.compare(got, *both(c, p), torch.float64)


def judge_cpu(name: str, folder: Path, dtype: torch.dtype) -> None:
    c = CONSTRUCTS[name]
    op = fwgen.compile(written(c, folder))
    p = problems.draw(c.witness, 7, B=1, H=2)
    problems.check_op(op, c.witness, p, dtype, backend="cpu")


@pytest.mark.parametrize("name", SOME)
def test_some_kernels(name, tmp_path, poisoned):
    judge_cpu(name, tmp_path, torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_kernels(name, dtype, tmp_path, poisoned):
    judge_cpu(name, tmp_path, dtype)
