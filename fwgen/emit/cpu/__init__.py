"""Step IR to C++: the CPU kernels of a rule as one source file."""

from fwgen.emit.cpu.source import cpu_source, saved_tensors

__all__ = ["cpu_source", "saved_tensors"]
