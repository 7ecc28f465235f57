"""The shipped feature maps, one YAML file each, and the random features that some of them take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fwgen.errors import ArgumentError

if TYPE_CHECKING:
    import torch

__all__ = ["orthogonal_random_features"]


def orthogonal_random_features(
    H: int,
    M: int,
    K: int,
    generator: torch.Generator | None = None,
    regularized: bool = False,
) -> torch.Tensor:
    """Directions `omega` of random feature maps: float32 `[H, M, K]`, one draw per head.

    Rows come in blocks of K that are orthogonal to each other. Their lengths are those of Gaussian
    vectors (chi-distributed), or all sqrt(K) when `regularized`. Raises ArgumentError for arguments
    of another kind.
    """
    import torch  # rules are listed and read without it

    for name, value in (("H", H), ("M", M), ("K", K)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ArgumentError(f"{name}: expected a positive int, found {value!r}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ArgumentError(f"generator: expected a torch.Generator, found {generator!r}")
    if not isinstance(regularized, bool):
        raise ArgumentError(f"regularized: expected True or False, found {regularized!r}")
    blocks = -(-M // K)
    normal = torch.randn(H, blocks, K, K, generator=generator)
    q, r = torch.linalg.qr(normal)
    signs = torch.diagonal(r, dim1=-2, dim2=-1).sign()
    rows: torch.Tensor = (q * signs[..., None, :]).mT.reshape(H, blocks * K, K)[:, :M]
    if regularized:
        scaled: torch.Tensor = rows * float(K) ** 0.5
        return scaled
    lengths: torch.Tensor = torch.randn(H, M, K, generator=generator).norm(dim=-1, keepdim=True)
    return rows * lengths
