"""One source for all processors: every set of vector instructions, and another architecture."""

import functools
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import problems
from contract_rules import NAMES, compiled, with_sizes, witness
from fwgen.cli import main
from fwgen.errors import ArgumentError, UnsupportedError
from fwgen.runtime import build, cpu_backend, flags
from fwgen.runtime.op import CompiledRule

FLOAT, DOUBLE = torch.float32, torch.float64
SETS = [
    pytest.param(isa, marks=pytest.mark.skipif(bool(flags.missing(isa)), reason=f"no {isa} here"))
    for isa in flags.EXTENSIONS
]
ALWAYS = [("gated_delta", FLOAT), ("gated_delta", DOUBLE), ("rwkv4", FLOAT), ("everything", FLOAT)]
REST = [(n, t) for n in NAMES for t in (FLOAT, DOUBLE) if (n, t) not in ALWAYS]
CASES = [*ALWAYS, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)]


def fresh(name: str) -> CompiledRule:
    """The rule with nothing loaded yet."""
    op = compiled(name)
    return CompiledRule(op.signature, op.sources)


def check_step(op: CompiledRule, name: str, dtype: torch.dtype) -> None:
    """One token by `step`, bitwise as by a call."""
    p = problems.draw(witness(name), 1).to(dtype)
    y, state = problems.run_op(op, p)
    at = {} if p.position is None else {"position": p.position}
    one, after = op.step(
        *(t[:, 0] for t in p.inputs.values()),
        state=p.initial,
        params=p.params,
        buffers=p.buffers,
        **at,
    )
    assert torch.equal(one, y[:, 0]) and all(torch.equal(after[n], state[n]) for n in state)


@pytest.mark.parametrize("name, dtype", CASES, ids=str)
@pytest.mark.parametrize("isa", SETS)
def test_numbers(isa, name, dtype, monkeypatch, poisoned):
    """Sizes below and above a vector's, forward, backward and step."""
    monkeypatch.setenv("FWGEN_ISA", isa)
    w, op = witness(name), fresh(name)
    for T in (1, 18, 33):
        problems.check_op(op, w, problems.draw(w, T), dtype)
    wide = with_sizes(w, K=19, V=9, D=17)
    problems.check_op(op, wide, problems.draw(wide, 5), dtype)
    check_step(op, name, dtype)


@pytest.mark.parametrize("isa", SETS)
def test_kernels_of_fixed_sizes(isa, monkeypatch, poisoned):
    monkeypatch.setenv("FWGEN_ISA", isa)
    w = with_sizes(witness("gated_delta"), K=16, V=32)
    problems.check_op(fresh("gated_delta"), w, problems.draw(w, 18), FLOAT)


@pytest.mark.parametrize("isa", SETS)
def test_the_set_is_forced(isa, monkeypatch, tmp_path):
    """What the compiler made has vectors of that width and no wider ones."""
    tool = shutil.which("objdump")
    if tool is None:
        pytest.skip("needs objdump")
    monkeypatch.setenv("FWGEN_ISA", isa)
    library = tmp_path / "library.so"
    command = [*build.compiler_command(["FWGEN_REAL=float"]), "-x", "c++", "-", "-o", str(library)]
    source = compiled("rwkv4").sources["cpu.cpp"]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    code = subprocess.run([tool, "-d", str(library)], text=True, check=True, capture_output=True)
    found = {name for name in ("xmm", "ymm", "zmm") if f"%{name}" in code.stdout}
    widths = {"avx512": "zmm", "avx2": "ymm", "plain": "xmm"}
    if "xmm" in found:  # x86
        assert max(found) == widths[isa]


def test_libraries_have_keys_of_their_own(monkeypatch):
    places = set()
    for isa in flags.ISAS:
        if not flags.missing(isa):
            monkeypatch.setenv("FWGEN_ISA", isa)
            places.add(build.library_path("x", "source", build.compiler_command()))
    assert len(places) == sum(not flags.missing(isa) for isa in flags.ISAS)


def test_unknown_set(monkeypatch, capsys):
    monkeypatch.setenv("FWGEN_ISA", "sse9")
    p = problems.draw(witness("rwkv4"), 2)
    with pytest.raises(ArgumentError, match=r"FWGEN_ISA: .*avx512, avx2, plain.*'sse9'"):
        problems.run_op(fresh("rwkv4"), p)
    assert main(["doctor"]) == 0
    assert "FWGEN_ISA: expected one of" in capsys.readouterr().out


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_set_that_this_processor_lacks(isa, monkeypatch):
    """Refused before anything is built, with what serves."""
    monkeypatch.setattr(flags, "_extensions", lambda: frozenset(flags.EXTENSIONS[isa][:-1]))
    monkeypatch.setenv("FWGEN_ISA", isa)
    p = problems.draw(witness("rwkv4"), 2)
    lacking = flags.EXTENSIONS[isa][-1]
    with pytest.raises(
        UnsupportedError, match=f"FWGEN_ISA={isa}: .*lacks {lacking}; native.*plain"
    ):
        problems.run_op(fresh("rwkv4"), p)


def test_doctor_shows_the_set(monkeypatch, capsys):
    for isa in ("native", "plain"):
        monkeypatch.setenv("FWGEN_ISA", isa)
        assert main(["doctor"]) == 0
        (line,) = (t for t in capsys.readouterr().out.splitlines() if t.startswith("vector code"))
        assert isa in line.split()[2]


@pytest.mark.parametrize("machine", ["aarch64", "arm64", "riscv64", "ppc64le"])
@pytest.mark.parametrize("isa", ["native", "plain"])
def test_other_machines_get_no_flags_of_x86(machine, isa):
    found = flags.compile_flags("g++", ["FWGEN_REAL=float"], isa, machine)
    assert not [f for f in found if "x86" in f or "avx" in f or "prefer-vector" in f]
    assert flags.vector_flags(isa, "x86_64"), "and x86 has some"


CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
needs_tools = pytest.mark.skipif(
    not (shutil.which(CROSS) and shutil.which(EMULATOR)),
    reason=f"needs {CROSS} and {EMULATOR}: apt install g++-aarch64-linux-gnu qemu-user",
)


@functools.cache
def cross_built(source: str, macros: tuple[str, ...], folder: Path) -> Path:
    """A program for aarch64: the kernels, compiled with our flags, and the driver around them."""
    program = folder / f"program-{abs(hash((source, macros)))}"
    kernels = program.with_suffix(".o")
    ours = [f for f in flags.compile_flags(CROSS, macros, "plain", "aarch64") if f != "-shared"]
    compile_ = [CROSS, *ours, "-c", "-x", "c++", "-", "-o", str(kernels)]
    subprocess.run(compile_, input=source, text=True, check=True)
    driver = Path(__file__).with_name("driver.cpp")
    link = [CROSS, "-O1", "-static", "-fopenmp", str(driver), str(kernels), "-o", str(program)]
    subprocess.run(link, check=True)
    return program


class Emulated:
    """Kernels of a rule for aarch64 under emulation; `tensors` are those that a call may name."""

    def __init__(self, program: Path) -> None:
        self.program, self.tensors = program, dict[int, torch.Tensor]()
        self.fwgen_forward = functools.partial(self.run, 0)
        self.fwgen_backward = functools.partial(self.run, 1)

    def know(self, tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.is_contiguous()
        self.tensors[tensor.data_ptr()] = tensor
        return tensor

    def run(self, which: int, arguments) -> int:
        """Send the tensors whose addresses are among the arguments there and back."""
        values = list(arguments)
        named = {i: self.tensors[v] for i, v in enumerate(values) if v in self.tensors}
        assert not [v for i, v in enumerate(values) if v > 2**40 and i not in named], "unknown"
        sent = [struct.pack(f"<{len(values) + 3}q", which, len(values), *values, len(named))]
        for slot, tensor in named.items():
            content = tensor.detach().numpy().tobytes()
            sent += [struct.pack("<2q", slot, len(content)), content]
        done = subprocess.run(
            [EMULATOR, str(self.program)], input=b"".join(sent), capture_output=True, check=False
        )
        got, at = done.stdout, 0
        for tensor in named.values() if done.returncode == 0 else ():
            size = tensor.numel() * tensor.element_size()
            back = torch.frombuffer(bytearray(got[at : at + size]), dtype=tensor.dtype)
            tensor.detach().copy_(back.view(tensor.shape))
            at += size
        assert at == len(got), done.stderr.decode()
        return done.returncode


@needs_tools
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_aarch64(name, dtype, monkeypatch, tmp_path_factory, poisoned):
    """Cross-compiled kernels under user-mode emulation, against the loop in float64."""
    w, op = witness(name), fresh(name)
    folder = tmp_path_factory.getbasetemp()
    macros = (f"FWGEN_REAL={'float' if dtype == FLOAT else 'double'}",)
    library = Emulated(cross_built(op.sources["cpu.cpp"], macros, folder))

    def empty(shape, dtype, device):
        return library.know(torch.empty(shape, dtype=dtype, device=device))

    monkeypatch.setattr(cpu_backend.CpuBackend, "library", lambda *_: library)
    monkeypatch.setattr(cpu_backend, "empty", empty)

    def known(q: problems.Problem) -> problems.Problem:
        return q.map(library.know)

    for T in (1, 18, 33):
        p = problems.draw(w, T).map(lambda t: t.to(dtype))  # nothing is converted on the way
        want = problems.collect(p.to(DOUBLE), lambda q: problems.run_witness(w, q))
        near = problems.collect(p.to(FLOAT), lambda q: problems.run_witness(w, q))
        at = None if p.position is None else library.know(torch.full((2,), p.position))

        def run(q: problems.Problem, at=at):
            q = known(replace(q, position=None))
            return problems.run_op(op, q, **({} if at is None else {"position": at}))

        problems.compare(problems.collect(known(p), run), want, near, dtype)
