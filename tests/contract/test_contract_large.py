"""More than 2^31 elements: offsets that no 32-bit number holds, in a file of holes."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

import fwgen
import problems
from contract_rules import compiled, packed_problem, witness
from fwgen.runtime import cpu_backend
from fwgen.runtime.op import CompiledRule

RULES = ["gated_delta", "mamba2", "recurrent_delta", "rwkv4", "agalite", "everything"]
FAR = 2**31 + 2**20
ROOM = 2**24


class Holes:
    """A file without content that takes tensors whose ends lie 2^31 elements apart.

    `axis` is the one, of sequences n, tokens t and heads h, along which they are stretched.
    """

    def __init__(self, path: Path, axis: str) -> None:
        size = FAR + ROOM
        self.store = torch.from_file(str(path), shared=True, size=size, dtype=torch.float32)
        self.axis, self.used, self.stretched = axis, 0, 0

    def strides(self, shape: tuple[int, ...], axes: str) -> tuple[int, ...]:
        """Dense but for the step along the axis."""
        far = axes.find(self.axis)
        if far < 0 or shape[far] < 2:
            return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        rest = [1 if i == far else n for i, n in enumerate(shape)]
        steps = [math.prod(rest[i + 1 :]) for i in range(len(shape))]
        steps[far] = FAR // (shape[far] - 1)
        self.stretched += 1
        return tuple(steps)

    def empty(self, shape: tuple[int, ...], axes: str) -> torch.Tensor:
        at, self.used = self.used, self.used + math.prod(shape)
        assert self.used < ROOM
        return self.store[at:].as_strided(shape, self.strides(shape, axes))

    def copy(self, tensor: torch.Tensor, axes: str) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        return self.empty(tuple(tensor.shape), axes).copy_(tensor)


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    """In memory where there is such a folder: a disk would be told of every page."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir=shared) as found:
        yield Path(found)


def spread(p: problems.Problem, holes: Holes) -> problems.Problem:
    """Every tensor of the call, and the gradients that come in, in a file of holes."""

    def over(held: dict, axes: str) -> dict:
        return {n: holes.copy(t, axes) for n, t in held.items()}

    return replace(
        p,
        inputs=over(p.inputs, "nth"),
        params=over(p.params, "h"),
        buffers=over(p.buffers, "h"),
        initial=p.initial and over(p.initial, "nh"),
        weights={n: holes.copy(t, "nth" if n == "y" else "nh") for n, t in p.weights.items()},
    )


def calls(name: str) -> list[tuple[problems.Problem, dict]]:
    """Rows, and packed sequences."""
    w, bounds = witness(name), [0, 17, 17, 35]
    rows = problems.draw(w, 35, B=2, H=2)
    packed = packed_problem(w, bounds)
    return [(rows, {}), (packed, {"cu_seqlens": torch.tensor(bounds)})]


@pytest.mark.parametrize("axis", "nth")
@pytest.mark.parametrize("name", RULES)
def test_far_apart_inputs(name, axis, folder):
    for number, (p, options) in enumerate(calls(name)):
        p, holes = p.to(torch.float32), Holes(folder / f"{number}", axis)
        want, got = (
            problems.collect(q, lambda r, o=options: problems.run_op(compiled(name), r, **o))
            for q in (p, spread(p, holes))
        )
        assert holes.stretched >= (axis == "h" or "cu_seqlens" not in options)
        assert all(torch.equal(got[n], want[n]) for n in want)


@pytest.mark.parametrize("axis", "nth")
@pytest.mark.parametrize("name", RULES)
def test_far_apart_results(name, axis, folder, monkeypatch):
    """Outputs, final states, what is kept between forward and backward, and gradients."""
    op = compiled(name)
    for number, (p, options) in enumerate(calls(name)):
        p, holes = p.to(torch.float32), Holes(folder / f"{number}", axis)
        want = problems.collect(p, lambda r, o=options: problems.run_op(op, r, **o))
        known: dict[tuple[int, ...], str] = {}

        def entry(shape, axes, heads, holes=holes, known=known):
            known[tuple(shape)] = axes
            steps = dict(zip(axes, holes.strides(tuple(shape), axes), strict=False))
            return [0, *(steps.get(a, 0) for a in "nth"), 1]

        def empty(shape, dtype, device, holes=holes, known=known):
            return holes.empty(tuple(shape), known[tuple(shape)])

        fresh = CompiledRule(op.signature, op.sources)
        with monkeypatch.context() as patch:
            patch.setattr(cpu_backend, "_shape_entry", entry)
            patch.setattr(cpu_backend, "empty", empty)
            got = problems.collect(p, lambda r, o=options, f=fresh: problems.run_op(f, r, **o))
        assert holes.stretched and holes.used
        assert all(torch.equal(got[n], want[n]) for n in want)


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable"):
            return 1024 * int(line.split()[1])
    return 0


@pytest.mark.slow
def test_output_of_more_elements():
    """8.6 GB of output, and gradients that sum over all of it."""
    T, V = 2**23 + 1, 256
    if available_bytes() < 12 * 2**30:
        pytest.skip("needs 12 GB of free memory")
    one = torch.ones(1, 1, 1, 1, requires_grad=True)
    v = torch.arange(V, dtype=torch.float32).view(1, 1, 1, V).remainder(2)
    y, final = fwgen.compile("sum", maps={"phi": "x"})(
        *(t.expand(1, T, 1, -1) for t in (one, one.detach(), v)), output_final_state=True
    )
    assert y.numel() > 2**31 and final is not None
    counted = torch.tensor([1, 2, 2**20, 2**22 + 1, T - 1, T], dtype=torch.float32)
    picked = y.detach()[0, counted.long() - 1, 0]
    assert torch.equal(picked, counted[:, None] * v.flatten())
    assert torch.equal(final["W"].flatten(), T * v.flatten())
