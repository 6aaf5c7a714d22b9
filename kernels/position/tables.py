"""Cosines and sines of rotary position encoding."""

from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor


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
        rotary_dim: 2P, the number of dims of a *head* that turn; even.
        base: the longest wavelength is about `2π base` tokens; positive and finite.
        dtype: of the tables.
        device: of the tables; torch's default if None.

    Returns:
        cos, sin: the tables, each `[R, P]`.

    Raises:
        TypeError: `dtype` is not a floating point dtype.
        ValueError: a negative length, a rotary_dim that is odd or below 2, a base that is not a
            positive finite number.

    Source: RoFormer, arXiv 2104.09864, section 3.4.2.
    """
    if length < 0:
        raise ValueError(f"length: {length}, expected 0 or more")
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"rotary_dim: {rotary_dim}, expected an even number of at least 2")
    if not (isfinite(base) and base > 0):
        raise ValueError(f"base: {base}, expected a positive finite number")
    if not dtype.is_floating_point:
        raise TypeError(f"dtype: {dtype}, expected a floating point dtype")
    exact = {"dtype": torch.float64, "device": device}
    exponents = torch.arange(0, rotary_dim, 2, **exact) / rotary_dim
    angles = torch.outer(torch.arange(length, **exact), base**-exponents)
    return angles.cos().to(dtype), angles.sin().to(dtype)
