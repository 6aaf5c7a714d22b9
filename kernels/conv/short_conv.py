"""Short convolution: every channel mixes its last few tokens, with weights of its own.

    z_t = bias + Σ_{i < W} weight_i ∘ x_{t-W+1+i},    y_t = f(z_t)

and backwards, with dz = f'(z) ∘ dy,

    dx_t      = Σ_{i < W} weight_i ∘ dz_{t+W-1-i}
    dweight_i = Σ_t dz_t ∘ x_{t-W+1+i}
    dbias     = Σ_t dz_t

where x before the first token is the initial state, and dz after the last is 0. The final state is
the last W - 1 rows of (initial state; x), so its gradient is added to those of these rows.

A program goes through a chunk row by row and keeps the last W rows, of x and backwards also of dz.
So each is loaded and computed once but for W - 1 rows around a chunk. W is at most 16, and a thread
holds fewer channels where there are more taps.
"""

from dataclasses import replace
from typing import Literal, Unpack

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import arguments, tiles
from kernels.arguments import describe
from kernels.differentiable import differentiable
from kernels.modes import check_mode
from kernels.primitives.chunks import cut, locate_chunk
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.states import output_and_states
from kernels.recurrence import StateOptions, stateful
from kernels.tiles import cdiv, next_power_of_2


@triton.jit
def _taps(weight_ptr, cols, dim, W: tl.constexpr):
    """The weights of some channels, a vector for each tap."""
    weights = ()
    for tap in tl.static_range(W):
        weights += (tl.load(weight_ptr + cols * W + tap, mask=cols < dim),)
    return weights


@triton.jit
def _earlier(x_ptr, initial_ptr, row, cols, before, dim, USE_INITIAL: tl.constexpr):
    """A row of (initial state; x), counted from the first of a chunk; 0 if there is no state.

    The chunk has `before` tokens of its sequence before it: none, or at least a chunk, which
    has as many rows as the state.
    """
    inside = cols < dim
    x = tl.load(x_ptr + row * dim + cols, mask=inside & (row >= -before), other=0.0).to(tl.float32)
    if USE_INITIAL:
        x += tl.load(initial_ptr + row * dim + cols, mask=inside & (row < -before), other=0.0)
    return x


@triton.jit
def _next(x_ptr, row, cols, left, dim, AHEAD: tl.constexpr):
    """Rows of a chunk, all loaded before the first is used; 0 past the end of the sequence."""
    rows = ()
    for n in tl.static_range(AHEAD):
        inside = (cols < dim) & (row + n < left)
        rows += (tl.load(x_ptr + (row + n) * dim + cols, mask=inside, other=0.0).to(tl.float32),)
    return rows


@triton.jit
def _mixed(rows, weights, total):
    """`total + Σ_i weights_i ∘ rows_i` over the taps."""
    for tap in tl.static_range(len(weights)):
        total += weights[tap] * rows[tap]
    return total


@triton.jit(do_not_specialize=["sequences", "tokens"])
def _forward(
    x_ptr, weight_ptr, bias_ptr, initial_ptr, y_ptr, final_ptr,
    cu_seqlens_ptr, sequences, tokens, dim: tl.int32,
    C: tl.constexpr, BD: tl.constexpr, W: tl.constexpr, AHEAD: tl.constexpr, SILU: tl.constexpr,
    USE_BIAS: tl.constexpr, USE_INITIAL: tl.constexpr, STORE_FINAL: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """A program writes y of one chunk and a tile of channels, and the final state at its end."""
    wide = tl.cdiv(dim, BD)
    chunk = tl.program_id(0) // wide
    cols = (tl.program_id(0) % wide) * BD + tl.arange(0, BD)
    first, left, sequence, before = locate_chunk(
        chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED
    )
    inside = cols < dim
    x_ptr += first * dim
    y_ptr += first * dim
    state = sequence * (W - 1)
    if USE_INITIAL:
        initial_ptr += (state + W - 1) * dim
    weights = _taps(weight_ptr, cols, dim, W)
    bias = 0.0
    if USE_BIAS:
        bias = tl.load(bias_ptr + cols, mask=inside)
    xs = ()
    for n in tl.static_range(1 - W, 0):
        xs += (_earlier(x_ptr, initial_ptr, n, cols, before, dim, USE_INITIAL),)
    for start in range(0, tl.minimum(left, C), AHEAD):
        xs += _next(x_ptr, start, cols, left, dim, AHEAD)
        for n in tl.static_range(AHEAD):
            y = _mixed(xs[n : n + W], weights, bias)
            if SILU:
                y *= tl.sigmoid(y)
            row = start + n
            tl.store(y_ptr + row * dim + cols, y, mask=inside & (row < left))
        xs = xs[AHEAD:]
    if STORE_FINAL:  # noqa: SIM102 (one test is made by the compiler)
        if (left > 0) & (left <= C):
            for n in tl.static_range(W - 1):
                row = left - (W - 1) + n
                x = _earlier(x_ptr, initial_ptr, row, cols, before, dim, USE_INITIAL)
                tl.store(final_ptr + (state + n) * dim + cols, x, mask=inside)


@triton.jit(do_not_specialize=["sequences", "tokens"])
def _backward(
    x_ptr, weight_ptr, bias_ptr, initial_ptr, dy_ptr, dfinal_ptr, dx_ptr, dweight_ptr, dbias_ptr,
    dinitial_ptr, cu_seqlens_ptr, sequences, tokens, dim: tl.int32,
    C: tl.constexpr, BD: tl.constexpr, W: tl.constexpr, AHEAD: tl.constexpr, SILU: tl.constexpr,
    USE_BIAS: tl.constexpr, USE_INITIAL: tl.constexpr, USE_FINAL_GRADIENT: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """A program writes dx of one chunk and a tile of channels, and its parts of dweight and dbias.

    It goes W - 1 rows further than the chunk, as dz there is part of dx. At each row dx is that of
    W - 1 rows before, in the first rows of a sequence that of its initial state.
    """
    wide = tl.cdiv(dim, BD)
    chunk = tl.program_id(0) // wide
    cols = (tl.program_id(0) % wide) * BD + tl.arange(0, BD)
    first, left, sequence, before = locate_chunk(
        chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED
    )
    inside = cols < dim
    own = tl.minimum(left, C)
    x_ptr += first * dim
    dy_ptr += first * dim
    dx_ptr += first * dim
    state = sequence * (W - 1)
    if USE_INITIAL:
        initial_ptr += (state + W - 1) * dim
    weights = _taps(weight_ptr, cols, dim, W)
    bias = 0.0
    if USE_BIAS:
        bias = tl.load(bias_ptr + cols, mask=inside)
    zero = tl.zeros([BD], tl.float32)
    xs, dzs, dweights, dbias = (), (), (zero,), zero
    for n in tl.static_range(1 - W, 0):
        xs += (_earlier(x_ptr, initial_ptr, n, cols, before, dim, USE_INITIAL),)
        dzs += (zero,)
        dweights += (zero,)
    for start in range(0, own + W - 1, AHEAD):
        xs += _next(x_ptr, start, cols, left, dim, AHEAD)
        dys = _next(dy_ptr, start, cols, left, dim, AHEAD)
        for n in tl.static_range(AHEAD):
            row = start + n
            dz = dys[n]
            if SILU:
                z = _mixed(xs[n : n + W], weights, bias)
                s = tl.sigmoid(z)
                dz *= s * (1.0 + z * (1.0 - s))
            dzs += (dz,)
            dx = _mixed(dzs[n : n + W], weights[::-1], 0.0)
            if USE_FINAL_GRADIENT:
                kept = inside & (row >= left) & (row < own + W - 1)
                dx += tl.load(dfinal_ptr + (state + row - left) * dim + cols, mask=kept, other=0.0)
            mask = inside & (row >= W - 1) & (row < own + W - 1)
            tl.store(dx_ptr + (row - (W - 1)) * dim + cols, dx, mask=mask)
            if USE_INITIAL:
                mask = inside & (before == 0) & (row < W - 1)
                tl.store(dinitial_ptr + (state + row) * dim + cols, dx, mask=mask)
            dz = tl.where(row < own, dz, 0.0)
            dbias += dz
            products = ()
            for tap in tl.static_range(W):
                products += (dweights[tap] + dz * xs[n + tap],)
            dweights = products
        xs = xs[AHEAD:]
        dzs = dzs[AHEAD:]
    dweight_ptr += chunk.to(tl.int64) * dim * W + cols * W
    for tap in tl.static_range(W):
        tl.store(dweight_ptr + tap, dweights[tap], mask=inside)
    if USE_BIAS:
        tl.store(dbias_ptr + chunk.to(tl.int64) * dim + cols, dbias, mask=inside)


def _forward_of(
    *, x: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, silu: bool, output_final_state: bool, tile: int,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    arguments.check_boundaries("cu_seqlens", cu_seqlens, x.shape[1])
    x, weight, bias, initial_state = contiguous(x, weight, bias, initial_state)
    batch, tokens, dim = x.shape
    taps = weight.shape[1]
    entry = _narrowed(tiles.TABLE["short_conv", "fused"][tile], dim, taps)
    chunks = cut(batch, tokens, cu_seqlens, entry.tokens)
    y = torch.empty_like(x)
    final = None
    if output_final_state:
        final = _passed(initial_state, (chunks.sequences, taps - 1, dim), x.device)
    _forward[(chunks.count * cdiv(dim, entry.features),)](
        x, weight, bias, initial_state, y, final,
        chunks.cu_seqlens, chunks.sequences, tokens, dim,
        C=entry.tokens, BD=entry.features, W=taps, AHEAD=entry.keys, SILU=silu,
        USE_BIAS=bias is not None, USE_INITIAL=initial_state is not None,
        STORE_FINAL=output_final_state, PACKED=cu_seqlens is not None, num_warps=entry.num_warps,
    )  # fmt: skip
    return y, final


def _backward_of(
    *, x: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, d0: Tensor, d1: Tensor | None, silu: bool, output_final_state: bool,
    tile: int,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    x, weight, bias, initial_state, dy, dfinal = contiguous(x, weight, bias, initial_state, d0, d1)
    batch, tokens, dim = x.shape
    taps = weight.shape[1]
    entry = _narrowed(tiles.TABLE["short_conv", "fused"][tile].of("backward"), dim, taps)
    chunks = cut(batch, tokens, cu_seqlens, entry.tokens)
    dx = torch.empty_like(x)
    dweight, dbias = (
        None if w is None else empty_parts(chunks.count, w.shape, w.dtype, x.device)
        for w in (weight, bias)
    )
    dinitial = None
    if initial_state is not None:
        dinitial = _passed(dfinal, initial_state.shape, x.device)
    _backward[(chunks.count * cdiv(dim, entry.features),)](
        x, weight, bias, initial_state, dy, dfinal, dx, dweight, dbias, dinitial,
        chunks.cu_seqlens, chunks.sequences, tokens, dim,
        C=entry.tokens, BD=entry.features, W=taps, AHEAD=entry.keys, SILU=silu,
        USE_BIAS=bias is not None, USE_INITIAL=initial_state is not None,
        USE_FINAL_GRADIENT=dfinal is not None, PACKED=cu_seqlens is not None,
        num_warps=entry.num_warps,
    )  # fmt: skip
    return (
        dx,
        add_parts(dweight, weight.dtype),
        None if dbias is None else add_parts(dbias, bias.dtype),
        dinitial,
        None,
    )


def _passed(state: Tensor | None, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Copy the states: a sequence without tokens keeps its own, the kernel overwrites others."""
    if state is None:
        return torch.zeros(shape, dtype=torch.float32, device=device)
    return state.clone()


def _narrowed(tile: tiles.Tile, dim: int, taps: int) -> tiles.Tile:
    """Limit the channels of a tile to those of the call, and to fewer if it has many taps."""
    most = 4 * tile.features // max(4, next_power_of_2(taps))
    return replace(tile, features=min(most, next_power_of_2(dim)))


def _shapes(given):
    x = given["x"]
    return output_and_states(given, x, x.dtype, (given["weight"].shape[1] - 1, x.shape[2]))


_short_conv = differentiable("short_conv_fused", _forward_of, _backward_of, _shapes, outputs=2)


def compute(
    *, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None,
    initial_state: Tensor | None, output_final_state: bool, cu_seqlens: Tensor | None,
    mode: str, tile: int | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    arguments.check_flags(output_final_state=output_final_state)
    sizes = arguments.bind_dims(
        x=(x, "B T D"), weight=(weight, "D W"), bias=(bias, "D"),
        initial_state=(initial_state, "N W-1 D"),
    )  # fmt: skip
    dtype = arguments.check_one_dtype(x=x, weight=weight, bias=bias)
    arguments.check_dtype("initial_state", initial_state, torch.float32)
    arguments.check_range("W (the last dim of weight)", sizes["W"], 1, 16)
    arguments.check_choice("activation", activation, "silu", None)
    cu_seqlens = arguments.check_cu_seqlens("cu_seqlens", cu_seqlens, sizes["B"], x.device)
    sequences = arguments.count_sequences(sizes["B"], cu_seqlens)
    if initial_state is not None and initial_state.shape[:2] != (sequences, sizes["W"] - 1):
        raise ValueError(
            f"initial_state: {describe(initial_state)}, expected [N, W-1, D] with N={sequences}, "
            f"W={sizes['W']}"
        )
    check_mode(mode, "fused")
    tile = tiles.choose("short_conv", "fused", dim=1, dtype=dtype, device=x.device, tile=tile)
    y, final_state = _short_conv(
        x, weight, bias, initial_state, cu_seqlens, activation == "silu", output_final_state, tile
    )
    return y, final_state if output_final_state else None


@stateful(
    compute,
    outputs=("y", "final_state"),
    same_dtype=("x", "weight", "bias"),
    texts={"weight": "in the dtype of x. W is 1 to 16."},
    raises=("W outside 1 to 16", "another activation"),
)
def short_conv(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, "D"] | None = None,
    *,
    activation: Literal["silu"] | None = None,
    mode: Literal["auto", "fused"] = "auto",
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N W-1 D"] | None]:
    """Causal depthwise convolution over tokens, `reference.short_conv`."""
