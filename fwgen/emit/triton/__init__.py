"""Triton backend: Step IR and its adjoint to the text of GPU kernels."""

from fwgen.emit.triton.render import triton_sources

__all__ = ["triton_sources"]
