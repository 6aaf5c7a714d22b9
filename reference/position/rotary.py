"""Rotary position embedding: a position is an angle, and attention sees differences of angles."""

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from reference.op import Form, op
from reference.sequences import CuSeqlens, sequences


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
    position_ids: Tensor | None,
    *,
    interleaved: bool,
    seqlen_offsets: int | Tensor,
    cu_seqlens: Tensor | None,
    conjugate: bool,
    inplace: bool,
) -> Tensor:
    _check_tables(x, cos)
    groups = list(sequences(cu_seqlens, *x.shape[:2]))
    if position_ids is None:
        rows = _rows(x, cos, seqlen_offsets, groups)
    elif isinstance(seqlen_offsets, Tensor) or seqlen_offsets != 0:
        raise ValueError("position_ids: given beside seqlen_offsets, expected one of the two")
    else:
        rows = _checked_positions(position_ids, cos)
    cos, sin = (table.detach()[rows, None] for table in (cos, sin))
    return _turned(form, x, cos, sin, interleaved, conjugate, inplace)


def _run_on_axes(
    form: Form,
    sizes: object,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor,
    axes: Tensor,
    *,
    interleaved: bool,
    conjugate: bool,
    inplace: bool,
) -> Tensor:
    _check_tables(x, cos)
    A = len(position_ids)
    if len(axes) and not 0 <= axes.min() <= axes.max() < A:
        raise ValueError(f"axes: {axes.tolist()}, expected 0 to {A - 1}, the axes of position_ids")
    rows = _checked_positions(position_ids, cos)[axes.long()].movedim(0, -1)
    pair = torch.arange(cos.shape[1], device=x.device)
    cos, sin = (table.detach()[rows, pair][:, :, None] for table in (cos, sin))
    return _turned(form, x, cos, sin, interleaved, conjugate, inplace)


def _may_overlap(x: Tensor) -> bool:
    """Whether a stride is no longer than what the shorter ones span."""
    span = 0
    for step, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1):
        if step <= span:
            return True
        span += step * (size - 1)
    return False


def _turned(
    form: Form,
    x: Tensor,
    cos: Float[Tensor, "B T 1 P"],
    sin: Float[Tensor, "B T 1 P"],
    interleaved: bool,
    conjugate: bool,
    inplace: bool,
) -> Tensor:
    if inplace and x.numel() and _may_overlap(x):
        raise ValueError(f"inplace: x has strides {x.stride()}, expected elements of their own")
    rotated = form(x, cos, sin, interleaved, conjugate)
    y = torch.cat([rotated.to(x.dtype), x[..., 2 * cos.shape[-1] :]], dim=-1)
    return x.copy_(y) if inplace else y


def _check_tables(x: Tensor, cos: Tensor) -> None:
    (R, P), D = cos.shape, x.shape[-1]
    if 2 * P > D:
        raise ValueError(
            f"cos: float[{R}, {P}] rotates {2 * P} dims, expected at most head_dim={D}"
        )
    if cos.dtype not in (torch.float32, x.dtype):
        raise TypeError(f"cos: {cos.dtype}, expected torch.float32 or {x.dtype}, the dtype of x")


def _checked_positions(position_ids: Tensor, cos: Tensor) -> Tensor:
    R = len(cos)
    if position_ids.numel() and not 0 <= position_ids.min() <= position_ids.max() < R:
        raise ValueError(
            f"position_ids: from {position_ids.min()} to {position_ids.max()}, "
            f"expected rows from 0 to {R - 1}, those of cos and sin"
        )
    return position_ids.long()


def _rows(
    x: Tensor, cos: Tensor, seqlen_offsets: int | Tensor, groups: list[tuple[slice, slice]]
) -> Int64[Tensor, "B T"]:
    """The row of each token by its place in its sequence, checked to be there."""
    R, N = len(cos), groups[-1][0].stop
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
    return torch.tensor(rows, dtype=torch.int64, device=x.device).view(x.shape[:2])


TEXTS = {
    "x": "Queries or keys.",
    "cos": "Cosines, as of `rotary_tables`; float32 or the dtype of x. 2P <= D, the *head* dim. A "
    "constant: it gets no gradient.",
    "sin": "Sines.",
    "conjugate": "Rotate backwards (sin negated), which undoes a rotation.",
    "inplace": "Write the result into x and return x.",
    "y": "In the dtype of x.",
}


@op(rotation, as_complex, run=_run, same_dtype=("cos", "sin"), outputs=("y",), texts=TEXTS)
def rotary_embedding(
    x: Float[Tensor, "B T H D"],
    cos: Float[Tensor, "R P"],
    sin: Float[Tensor, "R P"],
    position_ids: Int32[Tensor, "B T"] | Int64[Tensor, "B T"] | None = None,
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

    where r is the row of the tables for the position of a token: `position_ids[b, t]`, or without
    them offset_n + t for token t of sequence n. Pair p < P is (x_p, x_{p+P}), or with `interleaved`
    (x_{2p}, x_{2p+1}). Dims from 2P on pass through bitwise.

    Args:
        position_ids: Position of each token, in any order and repeated at will. Beside it
            `cu_seqlens` is checked and changes nothing. None means that tokens follow one another.
        interleaved: Pairs are neighbours rather than halves.
        seqlen_offsets: Position of the first token of each sequence, in tokens; one int stands for
            all.
        cu_seqlens: Boundaries of N packed sequences, in tokens; B is then 1. Positions start anew
            in each. None means N = B sequences.

    Raises:
        TypeError: cos neither float32 nor of x's dtype.
        ValueError: 2P above the head dim; a row outside `[0, R)`; `position_ids` beside
            `seqlen_offsets` other than the int 0; `inplace` of elements that share memory;
            `cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not end at T.

    Source: Su et al., RoFormer, arXiv 2104.09864, equation 34.
    """


@op(rotation, as_complex, run=_run_on_axes, same_dtype=("cos", "sin"), outputs=("y",), texts=TEXTS)
def multiaxis_rotary(
    x: Float[Tensor, "B T H D"],
    cos: Float[Tensor, "R P"],
    sin: Float[Tensor, "R P"],
    position_ids: Int32[Tensor, "A B T"] | Int64[Tensor, "A B T"],
    axes: Int32[Tensor, "P"] | Int64[Tensor, "P"],
    *,
    interleaved: bool = False,
    conjugate: bool = False,
    inplace: bool = False,
) -> Float[Tensor, "B T H D"]:
    """Rotate each pair of dims by the position of a token on one of several axes.

        r_p = position_ids[axes[p], b, t]
        y1  = x1 cos[r_p, p] - x2 sin[r_p, p]
        y2  = x1 sin[r_p, p] + x2 cos[r_p, p]

    This is M-RoPE, with axes of time, height and width and `axes` of `rotary_axes`. With the same
    positions on all axes it is `rotary_embedding`. The tables of a 2-D rotation, whose sections
    have the same frequencies each, are those of half the dims side by side: `cos.repeat(1, 2)`.

    Args:
        position_ids: Position of each token on each axis.
        axes: The axis that turns each pair, as of `rotary_axes`.
        interleaved: Pairs are neighbours rather than halves. (`rotary_axes` can interleave axes.)

    Raises:
        TypeError: cos neither float32 nor of x's dtype.
        ValueError: 2P above the head dim; a position outside `[0, R)`; an axis outside `[0, A)`;
            `inplace` of elements that share memory.

    Source: Wang et al., Qwen2-VL, arXiv 2409.12191, section 2.1; Heo et al., Rotary Position
        Embedding for Vision Transformer, arXiv 2403.13298, section 3.2 (two axes).
    """
