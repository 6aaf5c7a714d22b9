"""Rotary position embedding: one kernel for both pairings, both directions, copied or in place."""

from typing import Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kernels import tiles
from kernels.arguments import (
    bind_dims,
    check_boundaries,
    check_cu_seqlens,
    check_dtype,
    check_flags,
    check_one_dtype,
    check_range,
    count_sequences,
    describe,
)
from kernels.tiles import cdiv, next_power_of_2

_INDICES = (torch.int32, torch.int64)


@triton.jit(do_not_specialize=["tokens_per_sequence", "heads", "num_vectors", "offset"])
def _rotate(
    x_ptr, y_ptr, cos_ptr, sin_ptr, rows_ptr,
    tokens_per_sequence, heads, head_dim: tl.int32, pairs: tl.int32, num_vectors, offset,
    x_stride_b: tl.int64, x_stride_t: tl.int64, x_stride_h: tl.int64, x_stride_d,
    y_stride_b: tl.int64, y_stride_t: tl.int64, y_stride_h: tl.int64, y_stride_d,
    cos_stride_r: tl.int64, cos_stride_p, sin_stride_r: tl.int64, sin_stride_p,
    INTERLEAVED: tl.constexpr, CONJUGATE: tl.constexpr,
    HAS_ROWS: tl.constexpr, IN_PLACE: tl.constexpr,
    VECTORS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """A program turns VECTORS consecutive (batch, token, head) vectors of x."""
    # The first vector of the program may lie past 2^31; what is added to it does not, which keeps
    # the divisions of vectors in 32 bits.
    first = tl.program_id(0).to(tl.int64) * VECTORS
    first_token = first // heads
    head = (first % heads).to(tl.int32) + tl.arange(0, VECTORS)
    token = first_token + head // heads
    head %= heads
    time = (first_token % tokens_per_sequence).to(tl.int32) + (token - first_token).to(tl.int32)
    batch = first_token // tokens_per_sequence + time // tokens_per_sequence
    time = (time % tokens_per_sequence).to(tl.int64)
    inside = first + tl.arange(0, VECTORS) < num_vectors

    x_ptr += (batch * x_stride_b + time * x_stride_t + head * x_stride_h)[:, None]
    y_ptr += (batch * y_stride_b + time * y_stride_t + head * y_stride_h)[:, None]
    if HAS_ROWS:
        row = tl.load(rows_ptr + token, mask=inside)
    else:
        row = time + offset

    # Dims may lie as far apart as anything else.
    pair = tl.arange(0, PAIRS)[None, :].to(tl.int64)
    turned = inside[:, None] & (pair < pairs)
    # In float32, and with them the products. What is masked is nowhere stored.
    cos = tl.load(cos_ptr + row[:, None] * cos_stride_r + pair * cos_stride_p, mask=turned)
    sin = tl.load(sin_ptr + row[:, None] * sin_stride_r + pair * sin_stride_p, mask=turned)
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    if CONJUGATE:
        sin = -sin
    if INTERLEAVED:
        dim = tl.arange(0, 2 * PAIRS)[None, :].to(tl.int64)
        both = inside[:, None] & (dim < 2 * pairs)
        x = tl.load(x_ptr + dim * x_stride_d, mask=both)
        x1, x2 = tl.split(tl.reshape(x, (VECTORS, PAIRS, 2)))
        y = tl.reshape(tl.join(x1 * cos - x2 * sin, x1 * sin + x2 * cos), (VECTORS, 2 * PAIRS))
        if IN_PLACE:
            # A small tile is held by several threads at once; all read before one writes.
            tl.debug_barrier()
        tl.store(y_ptr + dim * y_stride_d, y, mask=both)
    else:
        x1 = tl.load(x_ptr + pair * x_stride_d, mask=turned)
        x2 = tl.load(x_ptr + (pairs + pair) * x_stride_d, mask=turned)
        y1 = x1 * cos - x2 * sin
        y2 = x1 * sin + x2 * cos
        if IN_PLACE:
            tl.debug_barrier()
        tl.store(y_ptr + pair * y_stride_d, y1, mask=turned)
        tl.store(y_ptr + (pairs + pair) * y_stride_d, y2, mask=turned)

    if not IN_PLACE:
        for start in range(2 * pairs, head_dim, PAIRS):
            still = start + pair
            rest = inside[:, None] & (still < head_dim)
            kept = tl.load(x_ptr + still * x_stride_d, mask=rest)
            tl.store(y_ptr + still * y_stride_d, kept, mask=rest)


def _table_rows(
    tokens: int, length: int, offset: int, offsets: Tensor | None, cu_seqlens: Tensor | None
) -> Tensor | None:
    """The table row of every token, or None where that is `offset + t` for every sequence.

    Raises:
        ValueError: a row outside `[0, length)`.
    """
    if offsets is None and cu_seqlens is None:
        return None
    if cu_seqlens is None:
        rows = offsets[:, None] + torch.arange(tokens, device=offsets.device)
    else:
        check_boundaries("cu_seqlens", cu_seqlens, tokens)
        # In 64 bits, or an offset past the tables could wrap into them.
        bounds = cu_seqlens.long()
        row_of_token_0 = (offset if offsets is None else offsets) - bounds[:-1]
        rows = torch.arange(tokens, device=bounds.device) + row_of_token_0.repeat_interleave(
            bounds.diff(), output_size=tokens
        )
    if rows.numel():
        low, high = torch.stack(rows.aminmax()).tolist()
        if low < 0 or high >= length:
            raise ValueError(
                f"seqlen_offsets: tokens read the rows {low} to {high} of cos, "
                f"expected rows within the {length} there are"
            )
    return rows


def _launch(
    x: Tensor,
    y: Tensor,
    cos: Tensor,
    sin: Tensor,
    offset: int,
    offsets: Tensor | None,
    cu_seqlens: Tensor | None,
    interleaved: bool,
    conjugate: bool,
    tile: int,
) -> None:
    batch, tokens, heads, head_dim = x.shape
    length, pairs = cos.shape
    rows = _table_rows(tokens, length, offset, offsets, cu_seqlens)
    shape = tiles.TABLE["rotary_embedding", "fused"][tile]
    vectors = batch * tokens * heads
    with torch.cuda.device_of(x):
        _rotate[(cdiv(vectors, shape.tokens),)](
            x, y, cos, sin, rows,
            tokens, heads, head_dim, pairs, vectors, offset,
            *x.stride(), *y.stride(), *cos.stride(), *sin.stride(),
            INTERLEAVED=interleaved, CONJUGATE=conjugate,
            HAS_ROWS=rows is not None, IN_PLACE=y is x,
            VECTORS=shape.tokens, PAIRS=max(16, next_power_of_2(pairs)),
            num_warps=shape.num_warps, num_stages=shape.num_stages,
        )  # fmt: skip


@torch.library.custom_op("attention_oracles::rotary_embedding", mutates_args=())
def _rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    offset: int,
    offsets: Tensor | None,
    cu_seqlens: Tensor | None,
    interleaved: bool,
    conjugate: bool,
    tile: int,
) -> Tensor:
    y = x.new_empty(x.shape)
    _launch(x, y, cos, sin, offset, offsets, cu_seqlens, interleaved, conjugate, tile)
    return y


@_rotary.register_fake
def _(x, cos, sin, offset, offsets, cu_seqlens, interleaved, conjugate, tile):
    return x.new_empty(x.shape)


@torch.library.custom_op("attention_oracles::rotary_embedding_", mutates_args={"x"})
def _rotary_(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    offset: int,
    offsets: Tensor | None,
    cu_seqlens: Tensor | None,
    interleaved: bool,
    conjugate: bool,
    tile: int,
) -> None:
    _launch(x, x, cos, sin, offset, offsets, cu_seqlens, interleaved, conjugate, tile)


@_rotary_.register_fake
def _(x, cos, sin, offset, offsets, cu_seqlens, interleaved, conjugate, tile):
    return None


def _save(ctx, inputs) -> None:
    _, cos, sin, offset, offsets, cu_seqlens, interleaved, conjugate, tile = inputs
    ctx.save_for_backward(cos, sin, offsets, cu_seqlens)
    ctx.options = offset, interleaved, conjugate, tile


def _turn_back(ctx, dy: Tensor):
    """A rotation's transpose is its inverse: the same kernel with the sine negated."""
    cos, sin, offsets, cu_seqlens = ctx.saved_tensors
    offset, interleaved, conjugate, tile = ctx.options
    dx = _rotary(dy, cos, sin, offset, offsets, cu_seqlens, interleaved, not conjugate, tile)
    return dx, *(None,) * 8


_rotary.register_autograd(_turn_back, setup_context=lambda ctx, inputs, output: _save(ctx, inputs))


class _InPlace(torch.autograd.Function):
    """`rotary_embedding_` with a gradient, which torch.library gives functional ops alone."""

    @staticmethod
    def forward(ctx, *inputs):
        _save(ctx, inputs)
        ctx.mark_dirty(inputs[0])
        _rotary_(*inputs)
        return inputs[0]

    backward = staticmethod(_turn_back)


def rotary_embedding(
    x: Float[Tensor, "B T H D"],
    cos: Float[Tensor, "R P"],
    sin: Float[Tensor, "R P"],
    *,
    interleaved: bool = False,
    seqlen_offsets: int | Int[Tensor, " N"] = 0,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    conjugate: bool = False,
    inplace: bool = False,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H D"]:
    """Turn pairs of a head's dims by angles that depend on the token's position.

        y1 = x1 cos[r] - x2 sin[r]          r = seqlen_offsets[n] + t  for token t of sequence n
        y2 = x1 sin[r] + x2 cos[r]

    The pairs `(x1, x2)` are `(x_i, x_{i+P})`, or `(x_{2i}, x_{2i+1})` when interleaved, for i < P.
    Dims from 2P on are copied bit for bit. Products are float32; x may have any strides.

    Args:
        x: queries or keys. float32, bfloat16 or float16.
        cos, sin: the tables of `rotary_tables`, both float32 or both of the dtype of x; constants
            without gradient.
        interleaved: pair neighbours instead of halves.
        seqlen_offsets: position of the first token, one for all sequences or one for each.
        cu_seqlens: boundaries of N sequences packed along T, with B = 1; N = B without.
        conjugate: turn the other way; the inverse.
        inplace: write to x and return x. Autograd knows, as it knows `x.mul_`.
        mode: `fused` is the only one.
        tile: entry of `kernels.tiles.TABLE["rotary_embedding", "fused"]`; None chooses.

    Returns:
        y: the turned x; x itself when in place, a new contiguous tensor otherwise.

    Raises:
        TypeError: a dtype, or an argument that is no tensor, that the list above does not have.
        ValueError: shapes or devices that do not fit; tables wider than the head (2P > D); a token
            whose row lies outside `[0, R)`; malformed `cu_seqlens`; `inplace` on a tensor whose
            elements share memory; an unknown mode or tile.

    Source: RoFormer, arXiv 2104.09864; halves as in GPT-NeoX, arXiv 2204.06745.
    """
    sizes = bind_dims(x=(x, "B T H D"), cos=(cos, "R P"), sin=(sin, "R P"))
    check_flags(interleaved=interleaved, conjugate=conjugate, inplace=inplace)
    dtype = check_one_dtype(x=x)
    check_dtype("cos", cos, torch.float32, dtype)
    check_dtype("sin", sin, cos.dtype)
    batch, tokens, head_dim = sizes["B"], sizes["T"], sizes["D"]
    length, pairs = sizes["R"], sizes["P"]
    check_range("head_dim (the last dim of x)", head_dim, 1, 256)
    if 2 * pairs > head_dim:
        raise ValueError(
            f"cos: {describe(cos)} turns {2 * pairs} dims of each head, "
            f"expected at most head_dim = {head_dim}, the last dim of x"
        )
    cu_seqlens = check_cu_seqlens("cu_seqlens", cu_seqlens, batch, x.device)
    offset, offsets = 0, None
    if isinstance(seqlen_offsets, Tensor):
        offsets = seqlen_offsets
        check_dtype("seqlen_offsets", offsets, *_INDICES)
        sequences = count_sequences(batch, cu_seqlens)
        if offsets.shape != (sequences,):
            raise ValueError(
                f"seqlen_offsets: {describe(offsets)}, expected [N] with N={sequences} sequences"
            )
        if offsets.device != x.device:
            raise ValueError(f"seqlen_offsets: on {offsets.device}, expected {x.device} like x")
    elif isinstance(seqlen_offsets, bool) or not isinstance(seqlen_offsets, (int, torch.SymInt)):
        raise TypeError(
            f"seqlen_offsets: {describe(seqlen_offsets)}, expected an int or an integer tensor [N]"
        )
    else:
        offset = seqlen_offsets
        if cu_seqlens is None and batch * tokens > 0 and (offset < 0 or offset + tokens > length):
            raise ValueError(
                f"seqlen_offsets: {offset} with {tokens} tokens reads the rows {offset} to "
                f"{offset + tokens - 1} of cos, expected rows within the {length} there are"
            )
    if mode not in ("auto", "fused"):
        raise ValueError(f"mode: {mode!r}, expected 'auto' or 'fused'")
    tile = tiles.choose(
        "rotary_embedding", "fused", dim=head_dim, dtype=dtype, device=x.device, tile=tile
    )
    inputs = (x, cos, sin, offset, offsets, cu_seqlens, bool(interleaved), bool(conjugate), tile)
    if not inplace:
        return _rotary(*inputs)
    # PyTorch gives an empty tensor strides of 0 now and then.
    shared = any(step == 0 and size > 1 for size, step in zip(x.shape, x.stride(), strict=True))
    if shared and batch * tokens > 0:
        raise ValueError(f"inplace: x has strides {x.stride()}, expected elements of their own")
    if not (torch.is_grad_enabled() and x.requires_grad):
        _rotary_(*inputs)
        return x
    if torch.compiler.is_compiling():
        # Dynamo traced mark_dirty only lately; a compiler removes the copy where it can.
        return x.copy_(_rotary(*inputs))
    return _InPlace.apply(*inputs)
