"""What `make demo` shows: rules compiled, their kernels proven against autograd, then trained.

The task is the paper's second setting at a size for two cores: 10 keys, each re-assigned twice on
average. The sum rule can only add, so the old value of a key stays in the way; the delta rule
replaces it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fwgen

from .attention_config import AttentionConfig
from .mixer import RuleMixer
from .plot import plot, table
from .retrieval import RetrievalConfig, run
from .settings import TrainConfig


@dataclass(frozen=True)
class DemoConfig:
    """Sizes of the demonstration; every model gets the same number of steps at most."""

    size: int = 10  # S; sequences of 2S pairs
    d_key: int = 16
    steps: int = 3000
    solved: float = 0.01  # the delta rule must end below
    failed: float = 0.1  # the sum rules must end above
    out: Path = Path("runs", "demo")


DPFP = "dpfp(x, nu=1)"
MODELS: tuple[tuple[str, dict[str, str], str], ...] = (
    # rule, maps, what it does to the memory
    ("sum", {"phi": DPFP}, "adds"),
    ("linear_attention", {"phi": DPFP}, "adds, and divides by the sum of its weights"),
    ("delta", {}, "replaces what it finds under the key"),
)


def main(config: DemoConfig = DemoConfig()) -> int:
    """Run all of it; returns 1 when a kernel is off or the outcome is not the paper's."""
    start = time.perf_counter()
    torch.set_num_threads(1)  # a step takes less than waking another thread on a busy machine
    print("1. Compile: one-step rule -> backward -> kernels")
    mixers = [_compile(*model, config) for model in MODELS]
    print("\n2. Check: kernels in float32 against autograd of the float64 token loop")
    if False in [_check(mixer) for mixer in mixers]:
        return 1
    print(
        f"\n3. Train: {config.size} keys, {2 * config.size} pairs, d_key {config.d_key}, "
        f"at most {config.steps} steps of 32 sequences"
    )
    results = []
    for rule, maps, _ in MODELS:
        results.append(_train(rule, maps, config))
        if results[-1]["stopped"] == "interrupted":
            return 130
    print("\n" + table(results))
    picture = config.out / "retrieval.png"
    plot(results, picture)
    print(f"\nLearning curves: {picture}")
    *sums, delta = (result["last"]["loss"] for result in results)
    best = min(sums)
    good = delta < config.solved and best > config.failed
    print(
        f"delta {delta:.4f} {'<' if delta < config.solved else '>='} {config.solved}, "
        f"best sum rule {best:.4f} {'>' if best > config.failed else '<='} {config.failed}"
        f" (0.5: always answering zero): {'as published' if good else 'NOT as published'}; "
        f"{time.perf_counter() - start:.0f} s in all"
    )
    return 0 if good else 1


def _compile(rule: str, maps: dict[str, str], deed: str, config: DemoConfig) -> RuleMixer:
    start = time.perf_counter()
    sizes = AttentionConfig(rule, maps, d_key=config.d_key, d_value=config.size)
    mixer = RuleMixer(sizes)
    inputs = [x.requires_grad_() for x in _problem(mixer, 2, 3, torch.float32)]
    mixer.op(*inputs)[0].sum().backward()  # builds forward and backward
    seconds = time.perf_counter() - start
    phi = maps.get("phi", "its own map")
    print(f"   {rule:18} {phi:14} {seconds:5.1f} s   {deed}")
    return mixer


def _check(mixer: RuleMixer, B: int = 4, T: int = 20) -> bool:
    """Print the worst error of output and gradients beside what is allowed.

    Allowed is ten times the error that the same token loop makes in float32, or, where that is
    small by luck, eight roundings of the largest value.
    """
    exact = _gradients(mixer.op.reference, _problem(mixer, B, T, torch.float64))
    plain = _gradients(mixer.op.reference, _problem(mixer, B, T, torch.float32))
    ours = _gradients(mixer.op, _problem(mixer, B, T, torch.float32))
    names = ["y", *(f"d{name}" for name in mixer.inputs)]
    cells, fine = [], True
    for name, e, p, o in zip(names, exact, plain, ours, strict=True):
        floor = 8 * torch.finfo(torch.float32).eps * e.abs().max().item()
        error, allowed = _worst(o, e), 10 * max(_worst(p, e), floor)
        good = error <= allowed  # NaN is not
        fine = fine and good
        cells.append(f"{name} {error:.0e} of {allowed:.0e}{'' if good else ' FAILED'}")
    print(f"   {mixer.op.rule.name:18} {'; '.join(cells)}")
    return fine


def _problem(mixer: RuleMixer, B: int, T: int, dtype: torch.dtype) -> list[Tensor]:
    """Inputs in the ranges of the rule, the same numbers in every dtype."""
    generator = torch.Generator().manual_seed(0)
    inputs = []
    for name, sizes in mixer.inputs.items():
        x = torch.randn(B, T, 1, *sizes, generator=generator)
        inputs.append((torch.sigmoid(x) if name == "beta" else x).to(dtype))
    return inputs


def _gradients(op: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradient of each input, for a fixed weighting of the output."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    y = op(*inputs)[0]
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad((weight * y).sum(), inputs)]


def _worst(x: Tensor, exact: Tensor) -> float:
    return (x.double() - exact).abs().max().item()


def _train(rule: str, maps: dict[str, str], config: DemoConfig) -> dict[str, Any]:
    """Stops when solved; a rule that fails gets all the steps, whatever its patience."""
    task = RetrievalConfig(
        rule, maps, setting=2, size=config.size, d_key=config.d_key, eval_length="2S"
    )
    training = TrainConfig(steps=config.steps, patience=0)
    result = run(task, training, config.out / rule, overwrite=True)
    if result["stopped"] != "interrupted":
        print(
            f"   {rule:18} loss {result['last']['loss']:.4f} after {result['steps']} steps, "
            f"{result['seconds']:.1f} s, {result['tokens_per_second']:,} tokens/s",
            flush=True,
        )
    return result


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (fwgen.UnsupportedError, fwgen.ArgumentError, fwgen.RuleError) as error:
        sys.exit(f"fwgen: error: {error}")
