"""Compiles a rule's Triton kernels for GPUs that are not there, and reads back what they use.

The launches are those of the generated module itself: its kernels are replaced by recorders, its
`forward` and `backward` run on unwritten CPU tensors, and what they would launch is compiled.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from fwgen.errors import ArgumentError, UnsupportedError

AOT_TARGETS = ("sm_90", "sm_80", "gfx942")
"""What `--aot` of the command line offers."""
SIZE = 64
"""The size of every named dim unless another one is asked for."""
TOKENS = 256
KERNELS = ("recurrent_forward", "recurrent_step", "recurrent_backward")


class Resources(TypedDict):
    """What one kernel takes on one target; its states are in `registers` or in `memory`."""

    kernel: str
    target: str
    states: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    tensor_core_ops: int


def compile_ahead(
    compilation: Any, target: str, dtype: str = "float32", size: int = SIZE
) -> list[Resources]:
    """Registers, spills, shared memory and tensor-core instructions of every kernel of a rule.

    `target`: sm_90, sm_80, ... or gfx942, ...; `dtype`: of the inputs; `size`: of every named dim.
    Raises ArgumentError for an unknown target and UnsupportedError where Triton is missing or runs
    as an interpreter.
    """
    sources = {f: s for f, s in compilation.sources.items() if f.startswith("triton_")}
    return [
        measure(kernel, arguments, options, target)
        for kernel, arguments, options in launches(compilation.signature, sources, dtype, size)
    ]


def resource_section(rows: Sequence[Mapping[str, Any]]) -> str:
    """What a package's report says of its kernels; nothing where none was compiled."""
    if not rows:
        return ""
    import triton

    lines = [" | ".join(rows[0]), " | ".join("---" for _ in rows[0])]
    lines += [" | ".join(map(str, row.values())) for row in rows]
    table = "\n".join(f"| {line} |" for line in lines)
    return (
        "\n## Resources of the Triton kernels\n\n"
        f"Compiled by Triton {triton.__version__} with every named size {SIZE}, float32 inputs.\n\n"
        f"{table}\n"
    )


Launch = tuple[Any, dict[str, Any], dict[str, Any]]


def launches(
    signature: Any, sources: Mapping[str, str], dtype: str = "float32", size: int = SIZE
) -> list[Launch]:
    """(kernel, arguments by name, launch options) of a step, a forward and a backward call."""
    try:
        import triton  # noqa: F401
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"ahead-of-time compilation needs Triton ({error})") from None
    from fwgen.runtime.triton_backend import TritonBackend

    return _record(TritonBackend(signature, sources), size, dtype)


class _Recorder:
    """Stands in for a kernel; remembers launches."""

    def __init__(self, kernel: Any, found: list[Launch]) -> None:
        self.kernel, self.found = kernel, found

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*values: Any, **named: Any) -> None:
            names = list(self.kernel.arg_names)
            arguments = dict(zip(names, values, strict=False))
            arguments |= {k: v for k, v in named.items() if k in names}
            options = {k: v for k, v in named.items() if k not in names}
            self.found.append((self.kernel, {n: arguments[n] for n in names}, options))

        return launch


def _record(backend: Any, size: int, dtype: str) -> list[Launch]:
    import torch

    from fwgen.runtime.sizes import evaluate

    signature = backend.signature
    sizes = dict.fromkeys(signature.free_dims, size)
    found: list[Launch] = []

    def make(spec: Any, *lead: int, like: Any = None) -> Any:
        shape = (*lead, *(evaluate(d, sizes) for d in spec.dims))
        return torch.empty(shape, dtype=like or getattr(torch, dtype))

    def call(tokens: int) -> tuple[Any, ...]:
        return (
            [make(s, 1, tokens, 1) for s in signature.inputs],
            [make(s, 1) for s in signature.params],
            [make(s, 1) for s in signature.buffers],
            [make(s, 1, 1, like=torch.float32) for s in signature.states],
            None,
            torch.zeros(1, dtype=torch.int64) if signature.uses_position else None,
        )

    with _recording(backend.module("forward", sizes), found) as module:
        module.forward(sizes, *call(1), False, True)
        y, finals, saved = module.forward(sizes, *call(TOKENS), True, True)
    wanted = [True] * (len(signature.inputs) + len(signature.params) + len(finals))
    with _recording(backend.module("backward", sizes), found) as module:
        module.backward(sizes, *call(TOKENS), saved, y, finals, wanted)
    return found


@contextmanager
def _recording(module: Any, found: list[Launch]) -> Iterator[Any]:
    """The module, its kernels replaced by recorders."""
    kept = {name: getattr(module, name) for name in KERNELS}
    if not all(hasattr(kernel, "create_binder") for kernel in kept.values()):
        raise UnsupportedError("ahead-of-time compilation needs TRITON_INTERPRET to be unset")
    try:
        for name, kernel in kept.items():
            setattr(module, name, _Recorder(kernel, found))
        yield module
    finally:
        for name, kernel in kept.items():
            setattr(module, name, kernel)


_TYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
}


def _specialised(kernel: Any, arguments: Mapping[str, Any]) -> tuple[dict[str, str], Any, Any]:
    """Types, constants and alignment of a launch, as Triton's own launcher would find them."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for n, (name, value) in enumerate(arguments.items()):
        parameter = kernel.params[n]
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            signature[name] = "constexpr"
            constants[(n,)] = value
            continue
        if isinstance(value, int):
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            aligned = value % 16 == 0
        else:
            signature[name] = "*" + _TYPES[str(value.dtype).removeprefix("torch.")]
            aligned = True
        if aligned:
            attributes[(n,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def measure(
    kernel: Any, arguments: Mapping[str, Any], options: Mapping[str, Any], target: str
) -> Resources:
    """Compile one launch for a target and read its resources."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    import triton

    number = re.fullmatch(r"sm_(\d+)|(gfx\w+)", target)
    if number is None:
        raise ArgumentError(f"target: expected one like sm_90 or gfx942, found {target!r}")
    nvidia = number[1] is not None
    gpu = GPUTarget("cuda", int(number[1]), 32) if nvidia else GPUTarget("hip", target, 64)
    signature, constants, attributes = _specialised(kernel, arguments)
    source = ASTSource(kernel, signature, constants, attributes)
    binary = triton.compile(source, target=gpu, options=dict(options))
    read = _read_nvidia if nvidia else _read_amd
    registers, spills, operations = read(binary.asm, target)
    return Resources(
        kernel=kernel.__name__,
        target=target,
        states="memory" if any(_walks(p) for p in kernel.params) else "registers",
        registers=registers,
        spill_bytes=spills,
        shared_bytes=int(binary.metadata.shared),
        tensor_core_ops=operations,
    )


def _walks(parameter: Any) -> bool:
    """Whether a parameter of a kernel is the length of a loop's turns over states in memory."""
    return bool(parameter.is_constexpr) and str(parameter.name).startswith("ROWS_")


def _read_nvidia(asm: Mapping[str, Any], target: str) -> tuple[int, int, int]:
    """Registers and spilled bytes as the assembler reports them, HMMA and HGMMA instructions."""
    from triton.backends.nvidia.compiler import get_ptxas

    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        ptx.write_text(asm["ptx"])
        cubin.write_bytes(asm["cubin"])
        architecture = re.search(r"\.target (\w+)", asm["ptx"])
        name = architecture[1] if architecture else target
        tool = get_ptxas(int(target.removeprefix("sm_"))).path
        # The options that Triton itself passes; it keeps no report of the assembler.
        command = [tool, "-lineinfo", "-v", "--regAllocOptLevel=2", f"--gpu-name={name}"]
        command += [str(ptx), "-o", str(Path(folder) / "again")]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        dump = [knobs.nvidia.cuobjdump.path, "-sass", str(cubin)]
        code = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    registers = re.search(r"Used (\d+) registers", report)
    stored = re.search(r"(\d+) bytes spill stores", report)
    loaded = re.search(r"(\d+) bytes spill loads", report)
    spills = max(int(m[1]) if m else 0 for m in (stored, loaded))
    return int(registers[1]) if registers else 0, spills, len(re.findall(r"\bHG?MMA\b", code))


def _read_amd(asm: Mapping[str, Any], target: str) -> tuple[int, int, int]:
    """Vector registers, bytes of memory per lane that spills take, and MFMA instructions."""
    code = asm["amdgcn"]

    def value(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", code)
        return int(found[1]) if found else 0

    # Spilled scalar registers go to lanes of vector registers; the rest lies in memory.
    spills = max(4 * value("vgpr_spill_count"), value("private_segment_fixed_size"))
    return value("vgpr_count"), spills, len(re.findall(r"\bv_mfma_", code))
