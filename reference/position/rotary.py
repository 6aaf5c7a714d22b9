"""Rotary position embedding: a position is an angle, and attention sees differences of angles."""

import math

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from reference.arguments import checked
from reference.op import Form, op
from reference.sequences import CuSeqlens, sequences


@checked
def rotary_tables(
    length: int,
    rotary_dim: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Float[Tensor, "R P"], Float[Tensor, "R P"]]:
    """Cosines and sines of the angle of each position and pair of dims.

        θ_p = base ** (-2p / rotary_dim),   cos[r, p] = cos(r θ_p),   sin[r, p] = sin(r θ_p)

    Computed in float64 and cast last: angles grow with the position, and rounding an angle of
    many turns is an error of its phase.

    Args:
        length: R, the number of positions (tokens), from 0 on.
        rotary_dim: 2P, the number of dims of a head that are rotated; even.
        base: the wavelengths run from 2π towards 2π·base tokens.
        dtype: of the tables.
        device: of the tables.

    Returns:
        cos, sin: `[length, rotary_dim / 2]`.

    Raises:
        TypeError: an argument of a wrong type; a dtype that is not a float.
        ValueError: a negative length, a rotary_dim that is odd or below 2, a base that is not a
            positive finite number.

    Source: Su et al., RoFormer, arXiv 2104.09864, equation 15 and section 3.3.
    """
    if length < 0:
        raise ValueError(f"length: {length}, expected 0 or more")
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"rotary_dim: {rotary_dim}, expected an even number of at least 2")
    if not (math.isfinite(base) and base > 0):
        raise ValueError(f"base: {base}, expected a positive finite number")
    if not dtype.is_floating_point:
        raise TypeError(f"dtype: {dtype}, expected a floating point dtype")
    position = torch.arange(length, dtype=torch.float64)
    pair = torch.arange(rotary_dim // 2, dtype=torch.float64)
    angle = torch.outer(position, base ** (-2 * pair / rotary_dim))
    return angle.cos().to(device, dtype), angle.sin().to(device, dtype)


def rotation(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, conjugate: bool) -> Tensor:
    sin = -sin if conjugate else sin
    P = cos.shape[-1]
    if interleaved:
        x1, x2 = x[..., 0 : 2 * P : 2], x[..., 1 : 2 * P : 2]
    else:
        x1, x2 = x[..., :P], x[..., P : 2 * P]
    y1 = x1 * cos - x2 * sin
    y2 = x1 * sin + x2 * cos
    return torch.stack([y1, y2], dim=-1).flatten(-2) if interleaved else torch.cat([y1, y2], -1)


def as_complex(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, conjugate: bool) -> Tensor:
    """Pairs of dims as complex numbers.

        y1 + i y2 = (x1 + i x2) · exp(i r)

    in which `conjugate` conjugates the factor. The rotated dims are laid out as a grid, `(2, P)`
    for halves and `(P, 2)` for neighbours. Complex numbers here are made of float32 or float64;
    narrower dtypes are computed in float32.

    Source: Su et al., RoFormer, arXiv 2104.09864, equation 12.
    """
    P, dtype = cos.shape[-1], torch.promote_types(x.dtype, torch.float32)
    factor = torch.complex(cos.to(dtype), sin.to(dtype))
    if conjugate:
        factor = factor.conj()
    grid, pair = ((P, 2), -1) if interleaved else ((2, P), -2)
    pairs = x[..., : 2 * P].unflatten(-1, grid).to(dtype)
    z = torch.view_as_complex(torch.stack([pairs.select(pair, 0), pairs.select(pair, 1)], dim=-1))
    z = z * factor
    return torch.stack([z.real, z.imag], dim=pair).flatten(-2)


def _run(
    form: Form,
    sizes: object,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool,
    seqlen_offsets: int | Tensor,
    cu_seqlens: Tensor | None,
    conjugate: bool,
    inplace: bool,
) -> Tensor:
    cos, sin = _rows(x, cos, sin, seqlen_offsets, cu_seqlens)
    rotated = form(x, cos, sin, interleaved, conjugate)
    y = torch.cat([rotated.to(x.dtype), x[..., 2 * cos.shape[-1] :]], dim=-1)
    return x.copy_(y) if inplace else y


def _rows(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: int | Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Float[Tensor, "B T 1 P"], Float[Tensor, "B T 1 P"]]:
    """The cosines and sines of each token, checked to be there."""
    (R, P), (B, T, _, D) = cos.shape, x.shape
    if 2 * P > D:
        raise ValueError(
            f"cos: float[{R}, {P}] rotates {2 * P} dims, expected at most head_dim={D}"
        )
    if cos.dtype not in (torch.float32, x.dtype):
        raise TypeError(f"cos: {cos.dtype}, expected torch.float32 or {x.dtype}, the dtype of x")
    groups = list(sequences(cu_seqlens, B, T))
    N = groups[-1][0].stop
    offsets = (
        seqlen_offsets.tolist() if isinstance(seqlen_offsets, Tensor) else [seqlen_offsets] * N
    )
    lengths = [t.stop - t.start for n, t in groups for _ in range(n.start, n.stop)]
    rows: list[int] = []
    for n, length in enumerate(lengths):
        offset = offsets[n]
        if length and (offset < 0 or offset + length > R):
            raise ValueError(
                f"seqlen_offsets: sequence {n} is on rows {offset} to {offset + length - 1}, "
                f"expected rows from 0 to {R - 1}, those of cos and sin"
            )
        rows.extend(range(offset, offset + length))
    index = torch.tensor(rows, dtype=torch.int64, device=x.device).view(B, T)
    return cos.detach()[index, None], sin.detach()[index, None]


@op(rotation, as_complex, run=_run, same_dtype=("cos", "sin"), outputs=("y",))
def rotary_embedding(
    x: Float[Tensor, "B T H D"],
    cos: Float[Tensor, "R P"],
    sin: Float[Tensor, "R P"],
    *,
    interleaved: bool = False,
    seqlen_offsets: int | Int32[Tensor, "N"] | Int64[Tensor, "N"] = 0,
    cu_seqlens: CuSeqlens | None = None,
    conjugate: bool = False,
    inplace: bool = False,
) -> Float[Tensor, "B T H D"]:
    """Rotate pairs of dims of each token by the angles of its position.

        y1 = x1 cos r - x2 sin r
        y2 = x1 sin r + x2 cos r

    where r = offset_n + t is the row of the tables for token t of sequence n. Pair p < P is
    (x_p, x_{p+P}), or with `interleaved` (x_{2p}, x_{2p+1}). Dims from 2P on pass through bitwise.

    Args:
        x: Queries or keys.
        cos: Cosines, as of `rotary_tables`; float32 or the dtype of x. 2P <= D, the *head* dim. A
            constant: it gets no gradient.
        sin: Sines.
        interleaved: Pairs are neighbours rather than halves.
        seqlen_offsets: Position of the first token of each sequence, in tokens; one int stands for
            all.
        cu_seqlens: Boundaries of N packed sequences, in tokens; B is then 1. Positions start anew
            in each. None means N = B sequences.
        conjugate: Rotate backwards (sin negated), which undoes a rotation.
        inplace: Write the result into x and return x.

    Returns:
        y: In the dtype of x.

    Raises:
        TypeError: cos neither float32 nor of x's dtype.
        ValueError: 2P above the head dim; a row outside `[0, R)`; `cu_seqlens` with B != 1, or that
            does not start at 0, decreases, or does not end at T.

    Source: Su et al., RoFormer, arXiv 2104.09864, equation 34.
    """
