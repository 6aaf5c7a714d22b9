"""Short convolution: every channel mixes its last few tokens, with weights of its own.

    z_t = bias + Σ_{i < W} weight_i ∘ x_{t-W+1+i},    y_t = f(z_t)

and backwards, with dz = f'(z) ∘ dy,

    dx_t      = Σ_{i < W} weight_i ∘ dz_{t+W-1-i}
    dweight_i = Σ_t dz_t ∘ x_{t-W+1+i}
    dbias     = Σ_t dz_t

where x before the first token is the initial state, and dz after the last is 0. The final state is
the last W - 1 rows of (initial state; x), so its gradient is added to those of these rows.
"""

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
from kernels.differentiable import differentiable
from kernels.primitives.chunks import Chunks, cut, locate_chunk, locate_sequence, sequence_of_chunk
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.rows import load_rows, store_rows
from kernels.tiles import cdiv


@triton.jit
def _earlier(
    x_ptr, initial_ptr, rows, back, cols, first, before, left, sequence, dim,
    W: tl.constexpr, USE_INITIAL: tl.constexpr,
):  # fmt: skip
    """x `back` tokens before each of some rows of a chunk.

    The chunk starts at row `first` of all, with `before` tokens of its sequence before it. What
    lies before token 0 is in the initial state, or 0.
    """
    token = before + rows - back
    inside = ((rows < left) & (token >= 0))[:, None] & (cols < dim)[None, :]
    cells = (first + rows - back)[:, None] * dim + cols[None, :]
    x = tl.load(x_ptr + cells, mask=inside, other=0.0)
    if USE_INITIAL:
        inside = (token < 0)[:, None] & (cols < dim)[None, :]
        cells = (sequence * (W - 1) + W - 1 + token)[:, None] * dim + cols[None, :]
        x += tl.load(initial_ptr + cells, mask=inside, other=0.0)
    return x


@triton.jit
def _tap(weight_ptr, cols, tap, dim, W: tl.constexpr):
    return tl.load(weight_ptr + cols * W + tap, mask=cols < dim).to(tl.float32)[None, :]


@triton.jit
def _mixed(
    x_ptr, weight_ptr, bias_ptr, initial_ptr, rows, cols, first, before, left, sequence, dim,
    W: tl.constexpr, USE_BIAS: tl.constexpr, USE_INITIAL: tl.constexpr,
):  # fmt: skip
    """z of some rows of a chunk."""
    z = tl.zeros([rows.shape[0], cols.shape[0]], tl.float32)
    for tap in tl.static_range(W):
        x = _earlier(
            x_ptr, initial_ptr, rows, W - 1 - tap, cols, first, before, left, sequence, dim,
            W, USE_INITIAL,
        )  # fmt: skip
        z += _tap(weight_ptr, cols, tap, dim, W) * x
    if USE_BIAS:
        z += tl.load(bias_ptr + cols, mask=cols < dim)[None, :]
    return z


@triton.jit(do_not_specialize=["tokens"])
def _forward(
    x_ptr, weight_ptr, bias_ptr, initial_ptr, y_ptr, table_ptr, tokens, dim: tl.int32,
    C: tl.constexpr, BD: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr,
    USE_BIAS: tl.constexpr, USE_INITIAL: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program writes y of one chunk and a tile of channels."""
    wide = tl.cdiv(dim, BD)
    chunk = tl.program_id(0) // wide
    cols = (tl.program_id(0) % wide) * BD + tl.arange(0, BD)
    first, left = locate_chunk(chunk, table_ptr, tokens, C, PACKED)
    sequence, before = sequence_of_chunk(chunk, table_ptr, tokens, C, PACKED)
    rows = tl.arange(0, C)
    z = _mixed(
        x_ptr, weight_ptr, bias_ptr, initial_ptr, rows, cols, first, before, left, sequence, dim,
        W, USE_BIAS, USE_INITIAL,
    )  # fmt: skip
    if SILU:
        z *= tl.sigmoid(z)
    store_rows(y_ptr + first * dim, z, rows, cols, dim, left, dim)


@triton.jit(do_not_specialize=["tokens"])
def _backward_mix(
    x_ptr, weight_ptr, bias_ptr, initial_ptr, dy_ptr, dz_ptr, dweight_ptr, dbias_ptr, table_ptr,
    tokens, dim: tl.int32,
    C: tl.constexpr, BD: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr,
    USE_BIAS: tl.constexpr, USE_INITIAL: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program writes dz of one chunk and a tile of channels, and its parts of dweight, dbias."""
    wide = tl.cdiv(dim, BD)
    chunk = tl.program_id(0) // wide
    cols = (tl.program_id(0) % wide) * BD + tl.arange(0, BD)
    first, left = locate_chunk(chunk, table_ptr, tokens, C, PACKED)
    sequence, before = sequence_of_chunk(chunk, table_ptr, tokens, C, PACKED)
    rows = tl.arange(0, C)
    dz = load_rows(dy_ptr + first * dim, rows, cols, dim, left, dim).to(tl.float32)
    if SILU:
        z = _mixed(
            x_ptr, weight_ptr, bias_ptr, initial_ptr, rows, cols, first, before, left, sequence,
            dim, W, USE_BIAS, USE_INITIAL,
        )  # fmt: skip
        s = tl.sigmoid(z)
        dz *= s * (1.0 + z * (1.0 - s))
    store_rows(dz_ptr + first * dim, dz, rows, cols, dim, left, dim)
    dweight_ptr += chunk.to(tl.int64) * dim * W + cols * W
    for tap in tl.static_range(W):
        x = _earlier(
            x_ptr, initial_ptr, rows, W - 1 - tap, cols, first, before, left, sequence, dim,
            W, USE_INITIAL,
        )  # fmt: skip
        tl.store(dweight_ptr + tap, tl.sum(dz * x, 0), mask=cols < dim)
    if USE_BIAS:
        tl.store(dbias_ptr + chunk.to(tl.int64) * dim + cols, tl.sum(dz, 0), mask=cols < dim)


@triton.jit(do_not_specialize=["tokens"])
def _backward_inputs(
    weight_ptr, dz_ptr, dfinal_ptr, dx_ptr, table_ptr, tokens, dim: tl.int32,
    C: tl.constexpr, BD: tl.constexpr, W: tl.constexpr,
    USE_FINAL_GRADIENT: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program writes dx of one chunk and a tile of channels."""
    wide = tl.cdiv(dim, BD)
    chunk = tl.program_id(0) // wide
    cols = (tl.program_id(0) % wide) * BD + tl.arange(0, BD)
    first, left = locate_chunk(chunk, table_ptr, tokens, C, PACKED)
    sequence, _ = sequence_of_chunk(chunk, table_ptr, tokens, C, PACKED)
    rows = tl.arange(0, C)
    dx = tl.zeros([C, BD], tl.float32)
    for tap in tl.static_range(W):
        dz = load_rows(dz_ptr + first * dim, rows + (W - 1 - tap), cols, dim, left, dim)
        dx += _tap(weight_ptr, cols, tap, dim, W) * dz
    if USE_FINAL_GRADIENT:
        kept = rows - left + W - 1
        inside = ((kept >= 0) & (rows < left))[:, None] & (cols < dim)[None, :]
        cells = (sequence * (W - 1) + kept)[:, None] * dim + cols[None, :]
        dx += tl.load(dfinal_ptr + cells, mask=inside, other=0.0)
    store_rows(dx_ptr + first * dim, dx, rows, cols, dim, left, dim)


@triton.jit(do_not_specialize=["tokens"])
def _states(
    x_ptr, weight_ptr, initial_ptr, final_ptr, dz_ptr, dfinal_ptr, dinitial_ptr,
    cu_seqlens_ptr, tokens, dim: tl.int32,
    BD: tl.constexpr, W: tl.constexpr, STORE_FINAL: tl.constexpr, USE_INITIAL: tl.constexpr,
    STORE_INITIAL_GRADIENT: tl.constexpr, USE_FINAL_GRADIENT: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program writes the final state of one sequence for a tile of channels, or the gradient of
    its initial state."""
    wide = tl.cdiv(dim, BD)
    sequence = (tl.program_id(0) // wide).to(tl.int64)
    cols = (tl.program_id(0) % wide) * BD + tl.arange(0, BD)
    first, length, _ = locate_sequence(sequence, cu_seqlens_ptr, cu_seqlens_ptr, tokens, 1, PACKED)
    inside = cols < dim
    rows = sequence * (W - 1)
    for n in tl.static_range(W - 1):
        if STORE_FINAL:
            token = length - (W - 1) + n
            mask = inside & (token >= 0)
            x = tl.load(x_ptr + (first + token) * dim + cols, mask=mask, other=0.0)
            if USE_INITIAL:
                mask = inside & (token < 0)
                x += tl.load(
                    initial_ptr + (rows + W - 1 + token) * dim + cols, mask=mask, other=0.0
                )
            tl.store(final_ptr + (rows + n) * dim + cols, x, mask=inside)
        if STORE_INITIAL_GRADIENT:
            # Row n is the token n - W + 1, which the taps up to n see from tokens of the sequence.
            d = tl.zeros([BD], tl.float32)
            for tap in tl.static_range(n + 1):
                token = n - tap
                mask = inside & (token < length)
                weight = tl.load(weight_ptr + cols * W + tap, mask=inside)
                dz = tl.load(dz_ptr + (first + token) * dim + cols, mask=mask, other=0.0)
                d += weight * dz
            if USE_FINAL_GRADIENT:
                mask = inside & (n >= length)
                d += tl.load(dfinal_ptr + (rows + n - length) * dim + cols, mask=mask, other=0.0)
            tl.store(dinitial_ptr + (rows + n) * dim + cols, d, mask=inside)


def _forward_of(
    *,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
    output_final_state: bool,
    tile: int,
) -> tuple[Tensor, Tensor | None]:
    check_boundaries("cu_seqlens", cu_seqlens, x.shape[1])
    x, weight, bias, initial_state = contiguous(x, weight, bias, initial_state)
    entry = tiles.TABLE["short_conv", "fused"][tile]
    chunks = cut(x.shape[0], x.shape[1], cu_seqlens, entry.tokens)
    sizes, programs = _sizes(x, weight, chunks, entry)
    y = torch.empty_like(x)
    if programs:
        _forward[(programs,)](
            x, weight, bias, initial_state, y, chunks.table, *sizes,
            C=entry.tokens, BD=entry.features, W=weight.shape[1], SILU=silu,
            USE_BIAS=bias is not None, USE_INITIAL=initial_state is not None,
            PACKED=chunks.table is not None, num_warps=entry.num_warps,
        )  # fmt: skip
    final = None
    if output_final_state:
        final = x.new_empty(chunks.sequences, weight.shape[1] - 1, x.shape[2], dtype=torch.float32)
        _launch_states(x, weight, initial_state, final, None, None, None, chunks, entry)
    return y, final


def _backward_of(
    *,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    d0: Tensor,
    d1: Tensor | None,
    silu: bool,
    output_final_state: bool,
    tile: int,
) -> tuple[Tensor | None, ...]:
    x, weight, bias, initial_state, dy, dfinal = contiguous(x, weight, bias, initial_state, d0, d1)
    entry = tiles.TABLE["short_conv", "fused"][tile]
    chunks = cut(x.shape[0], x.shape[1], cu_seqlens, entry.tokens)
    sizes, programs = _sizes(x, weight, chunks, entry)
    dz = torch.empty_like(x, dtype=torch.float32)
    dx = torch.empty_like(x)
    dweight, dbias = (
        None if w is None else empty_parts(chunks.count, w.shape, w.dtype, x.device)
        for w in (weight, bias)
    )
    if programs:
        taps = {"C": entry.tokens, "BD": entry.features, "W": weight.shape[1]}
        packed = chunks.table is not None
        _backward_mix[(programs,)](
            x, weight, bias, initial_state, dy, dz, dweight, dbias, chunks.table, *sizes,
            **taps, SILU=silu, USE_BIAS=bias is not None,
            USE_INITIAL=initial_state is not None, PACKED=packed, num_warps=entry.num_warps,
        )  # fmt: skip
        _backward_inputs[(programs,)](
            weight, dz, dfinal, dx, chunks.table, *sizes,
            **taps, USE_FINAL_GRADIENT=dfinal is not None, PACKED=packed,
            num_warps=entry.num_warps,
        )  # fmt: skip
    dinitial = None
    if initial_state is not None:
        dinitial = torch.empty_like(initial_state)
        _launch_states(x, weight, None, None, dz, dfinal, dinitial, chunks, entry)
    return (
        dx,
        add_parts(dweight, weight.dtype),
        None if dbias is None else add_parts(dbias, bias.dtype),
        dinitial,
        None,
    )


def _launch_states(
    x: Tensor,
    weight: Tensor,
    initial: Tensor | None,
    final: Tensor | None,
    dz: Tensor | None,
    dfinal: Tensor | None,
    dinitial: Tensor | None,
    chunks: Chunks,
    entry: tiles.Tile,
) -> None:
    dim = x.shape[2]
    grid = chunks.sequences * cdiv(dim, entry.features)
    _states[(grid,)](
        x, weight, initial, final, dz, dfinal, dinitial, chunks.cu_seqlens, x.shape[1], dim,
        BD=entry.features, W=weight.shape[1], STORE_FINAL=final is not None,
        USE_INITIAL=initial is not None, STORE_INITIAL_GRADIENT=dinitial is not None,
        USE_FINAL_GRADIENT=dfinal is not None, PACKED=chunks.table is not None,
        num_warps=entry.num_warps,
    )  # fmt: skip


def _sizes(
    x: Tensor, weight: Tensor, chunks: Chunks, entry: tiles.Tile
) -> tuple[tuple[int, int], int]:
    """The numbers of tokens and channels, and how many programs write a chunk of them each."""
    dim = x.shape[2]
    return (x.shape[1], dim), chunks.count * cdiv(dim, entry.features)


def _shapes(given):
    x, weight, cu_seqlens = given["x"], given["weight"], given["cu_seqlens"]
    sequences = count_sequences(x.shape[0], cu_seqlens)
    state = (sequences, weight.shape[1] - 1, x.shape[2])
    return (
        (x.shape, x.dtype),
        (state if given["output_final_state"] else (0,), torch.float32),
    )


_short_conv = differentiable(
    "short_conv_fused",
    tensors=("x", "weight", "bias?", "initial_state?", "cu_seqlens?"),
    settings={"silu": "bool", "output_final_state": "bool", "tile": "int"},
    outputs=2,
    forward=_forward_of,
    backward=_backward_of,
    shapes=_shapes,
)


def short_conv(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, "D"] | None = None,
    *,
    activation: Literal["silu"] | None = None,
    initial_state: Float[Tensor, "N W-1 D"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N W-1 D"] | None]:
    """Causal depthwise convolution over tokens.

        y_t = f(bias + Σ_{i < W} weight_i ∘ x_{t-W+1+i})

    so that weight_{W-1} is that of the token itself. The tokens before the first are the rows of
    the initial state, the oldest first: the state is the last W - 1 tokens, and nothing else. f is
    the identity, or with `activation="silu"` f(z) = z sigmoid(z).

    Differentiable once, through both returns. All sums are float32.

    Args:
        x: inputs `[B, T, D]`, float32, bfloat16 or float16. Any strides.
        weight: `[D, W]`, in the dtype of x, W (1 to 16) taps from the oldest token to the newest.
        bias: `[D]`, in the dtype of x. None means 0.
        activation: "silu", or None for none.
        initial_state: the W - 1 tokens before the first `[N, W-1, D]`, float32. None means zeros.
        output_final_state: return the last W - 1 tokens as well; where a sequence has fewer, its
            initial state fills up.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.
        mode: `fused`, in one kernel.
        tile: index into `kernels.tiles.TABLE["short_conv", "fused"]`; None chooses by dtype and
            device.

    Returns:
        y: `[B, T, D]`, in the dtype of x.
        final_state: `[N, W-1, D]`, float32; None unless `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; x, weight, bias not of one dtype.
        ValueError: shapes or devices that do not match; no taps, or more than 16; another
            activation; `cu_seqlens` with B != 1, or that does not start at 0, decreases, or does
            not end at T; an unknown mode or tile.
        NotImplementedError: a gradient of a gradient.

    Source: Gu and Dao, Mamba, arXiv 2312.00752, section 3.4 (before the state space); Yang et al.,
        arXiv 2406.06484, section 3.3 (of q, k and v).
    """
    check_flags(output_final_state=output_final_state)
    sizes = bind_dims(
        x=(x, "B T D"), weight=(weight, "D W"), bias=(bias, "D"),
        initial_state=(initial_state, "N W-1 D"),
    )  # fmt: skip
    dtype = check_one_dtype(x=x, weight=weight, bias=bias)
    check_dtype("initial_state", initial_state, torch.float32)
    check_range("W (the last dim of weight)", sizes["W"], 1, 16)
    if activation not in (None, "silu"):
        raise ValueError(f"activation: {activation!r}, expected 'silu' or None")
    cu_seqlens = check_cu_seqlens("cu_seqlens", cu_seqlens, sizes["B"], x.device)
    sequences = count_sequences(sizes["B"], cu_seqlens)
    if initial_state is not None and initial_state.shape[:2] != (sequences, sizes["W"] - 1):
        raise ValueError(
            f"initial_state: {describe(initial_state)}, expected [N, W-1, D] with N={sequences}, "
            f"W={sizes['W']}"
        )
    if mode not in ("auto", "fused"):
        raise ValueError(f"mode: {mode!r}, expected 'auto', 'fused'")
    tile = tiles.choose("short_conv", "fused", dim=1, dtype=dtype, device=x.device, tile=tile)
    y, final_state = _short_conv(
        x, weight, bias, initial_state, cu_seqlens, activation == "silu", output_final_state, tile
    )
    return y, final_state if output_final_state else None
