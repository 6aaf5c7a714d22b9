"""Cosines and sines of rotary position encoding."""

from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.arguments import FLOATS


def rotary_tables(
    length: int,
    rotary_dim: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Float[Tensor, "R P"], Float[Tensor, "R P"]]:
    """Cosine and sine of every position's rotation angles.

        angle[r, i] = r * base^(-2i / rotary_dim)      r < R = length,  i < P = rotary_dim / 2

    Angles are float64 and the cast to `dtype` comes last: a position above 256 is no bfloat16
    number, and an angle rounded before its cosine is wrong by whole radians far out.

    Args:
        length: R, the number of positions, 0 or more.
        rotary_dim: 2P, the number of dims of a *head* that turn; even, 0 or more.
        base: the longest wavelength is about `2π base` tokens; positive and finite.
        dtype: of the tables: float32, bfloat16, float16 or float64.
        device: of the tables; torch's default if None.

    Returns:
        cos, sin: the tables, each `[R, P]`.

    Raises:
        TypeError: `dtype` is not a float dtype.
        ValueError: a negative length, an odd or negative rotary_dim, a base that is not positive
            and finite.

    Source: RoFormer, arXiv 2104.09864, section 3.4.2.
    """
    if length < 0:
        raise ValueError(f"length: {length}, expected 0 or more")
    if rotary_dim < 0 or rotary_dim % 2:
        raise ValueError(f"rotary_dim: {rotary_dim}, expected an even number, 0 or more")
    if not (isfinite(base) and base > 0):
        raise ValueError(f"base: {base}, expected a positive finite number")
    if dtype not in (*FLOATS, torch.float64):
        raise TypeError(f"dtype: {dtype}, expected a float dtype")
    exact = {"dtype": torch.float64, "device": device}
    exponents = torch.arange(0, rotary_dim, 2, **exact) / max(rotary_dim, 1)
    angles = torch.outer(torch.arange(length, **exact), base**-exponents)
    return angles.cos().to(dtype), angles.sin().to(dtype)
