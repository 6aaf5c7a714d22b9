"""Attention to keys and values in pages: the public op, and the custom op behind it."""

from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from kernels import arguments, tiles
from kernels.arguments import count_sequences, describe
from kernels.differentiable import refuse_gradients
from kernels.modes import check_mode
from kernels.op import op
from kernels.primitives.layout import contiguous, dense_rows
from kernels.scale import BAD_SCALE, resolve_scale
from kernels.softmax.arguments import (
    BAD_SOFTCAP,
    MAX_KEY_DIM,
    MAX_VALUE_DIM,
    check_softcap,
    check_window,
)
from kernels.softmax.launch import factor_and_cap
from kernels.softmax.paged_forward import merge_parts, paged_forward
from kernels.softmax.tree import check_tree, walk
from kernels.tiles import cdiv, next_power_of_2

_EIGHT_BITS = (torch.int8, torch.float8_e4m3fn)
_INTEGERS = (torch.int32, torch.int64)


def check_table(block_table: Tensor, lengths: Tensor, size: int, pool: int) -> None:
    """Check which pages hold the tokens of each sequence; waits for the device.

    Raises:
        ValueError: a negative length, a table too short for a length, a page outside the pool.
    """
    counts = lengths.tolist()
    for n, length in enumerate(counts):
        if length < 0:
            raise ValueError(f"lengths: {length} of sequence {n}, expected at least 0")
        if cdiv(length, size) > block_table.shape[1]:
            raise ValueError(
                f"block_table: {block_table.shape[1]} blocks, expected {cdiv(length, size)} for "
                f"the {length} tokens of sequence {n}, with {size} to a page"
            )
    block = torch.arange(block_table.shape[1], device=block_table.device)
    wrong = (block_table < 0) | (block_table >= pool)
    wrong &= block[None] * size < lengths[:, None]
    if bool(wrong.any()):
        n, m = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"block_table: page {int(block_table[n, m])} of sequence {n}, expected 0 to {pool - 1}"
        )


def _walks(
    parents: Tensor | None, lengths: Tensor, cu_seqlens: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """`walk` of the trees of all sequences, int32 like `parents`; checks them."""
    if parents is None:
        return None, None
    tokens = parents.shape[1]
    bounds = [0, tokens] if cu_seqlens is None else cu_seqlens.tolist()
    each = [
        parents[b, start:stop].tolist()
        for b in range(parents.shape[0])
        for start, stop in pairwise(bounds)
    ]
    for tree, length in zip(each, lengths.tolist(), strict=True):
        check_tree("parents", tree, length)
    walks = [walk(tree) for tree in each]
    enter, leave = (
        torch.tensor([number for numbers in side for number in numbers], dtype=torch.int32)
        for side in ([w[0] for w in walks], [w[1] for w in walks])
    )
    return tuple(x.to(parents.device).view(parents.shape) for x in (enter, leave))  # type: ignore


@torch.library.custom_op("attention_oracles::paged_attention", mutates_args=())
def paged_attention_fused(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor,
    sink: Tensor | None, alibi_slopes: Tensor | None, k_scale: Tensor | None,
    v_scale: Tensor | None, parents: Tensor | None, cu_seqlens: Tensor | None, scale: float,
    causal: bool, window: int | None, softcap: float | None, num_splits: int, tile: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse of `paged_attention`, its arguments checked but for numbers in tensors."""
    batch, queries, heads, key_dim = q.shape
    pool, size, kv_heads, value_dim = v_pages.shape
    longest = arguments.check_boundaries("cu_seqlens", cu_seqlens, queries)
    check_table(block_table, lengths, size, pool)
    enter, leave = _walks(parents, lengths, cu_seqlens)
    o = q.new_empty(batch, queries, heads, value_dim)
    lse = q.new_empty(batch, heads, queries, dtype=torch.float32)
    if lse.numel() == 0:
        return o, lse
    kernel = "attend" if v_scale is None else "scaled"
    entry = tiles.TABLE["paged_attention", "fused"][tile].of(kernel)
    group, split = heads // kv_heads, num_splits > 1
    count = cdiv(longest * group, entry.tokens)
    rows = batch * queries * heads
    parts = lse.new_empty(num_splits, rows, value_dim) if split else lse
    row_maxima, weight_sums = lse.new_empty(2, num_splits, rows) if split else (lse, lse)
    limit = 2**30 if window is None else min(window, 2**30)
    pad_v = max(16, next_power_of_2(value_dim))
    (q,) = dense_rows(q)
    sink, alibi_slopes, lengths = contiguous(sink, alibi_slopes, lengths)
    no_strides = (0, 0, 0)
    with torch.cuda.device_of(q):
        paged_forward[(count * num_splits * kv_heads * count_sequences(batch, cu_seqlens),)](
            q, k_pages, v_pages, o, lse, parts, row_maxima, weight_sums, sink, alibi_slopes,
            q if k_scale is None else k_scale, q if v_scale is None else v_scale, enter, leave,
            block_table, lengths, cu_seqlens,
            *factor_and_cap(scale, softcap), limit,
            queries, count, num_splits, kv_heads, group, size, rows, key_dim, value_dim,
            *q.stride()[:3], *k_pages.stride(), *v_pages.stride(), *block_table.stride(),
            *(no_strides if k_scale is None else k_scale.stride()),
            *(no_strides if v_scale is None else v_scale.stride()),
            CAUSAL=causal, WINDOW=window is not None, CAPPED=softcap is not None,
            SINK=sink is not None, ALIBI=alibi_slopes is not None, TREE=parents is not None,
            K_SCALED=k_scale is not None, V_SCALED=v_scale is not None,
            PACKED=cu_seqlens is not None, SPLIT=split, ROWS=entry.tokens, KEYS=entry.keys,
            PAD_K=max(16, next_power_of_2(key_dim)), PAD_V=pad_v, SLICE=entry.features,
            num_warps=entry.num_warps, num_stages=entry.num_stages,
        )  # fmt: skip
        if split:
            merge_parts[(cdiv(rows, entry.tokens),)](
                parts, row_maxima, weight_sums, o, lse, rows, queries, num_splits, heads, value_dim,
                ROWS=entry.tokens, PAD_V=pad_v, num_warps=entry.num_warps,
            )  # fmt: skip
    return o, lse


@paged_attention_fused.register_fake
def _(q: Tensor, k_pages: Tensor, v_pages: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    batch, queries, heads, _ = q.shape
    o = q.new_empty(batch, queries, heads, v_pages.shape[3])
    return o, q.new_empty(batch, heads, queries, dtype=torch.float32)


refuse_gradients(paged_attention_fused, "paged_attention", "gradients")


def _check_pages(dtype: torch.dtype, **pages: tuple[Tensor, Tensor | None]) -> None:
    first = next(iter(pages.values()))[0]
    for name, (x, scale) in pages.items():
        arguments.check_dtype(f"{name}_pages", x, dtype, *_EIGHT_BITS)
        arguments.check_dtype(f"{name}_pages", x, first.dtype)
        arguments.check_dtype(f"{name}_scale", scale, dtype, torch.float32)
        if x.dtype in _EIGHT_BITS and scale is None:
            raise ValueError(f"{name}_scale: None, expected the scales of 8-bit pages")


def compute(
    *, q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor,
    scale: float | None, causal: bool, window: int | None, softcap: float | None,
    sink: Tensor | None, alibi_slopes: Tensor | None, k_scale: Tensor | None,
    v_scale: Tensor | None, parents: Tensor | None, cu_seqlens: Tensor | None, num_splits: int,
    return_lse: bool, mode: str, tile: int | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    sizes = arguments.bind_dims(
        q=(q, "B T_q H K"),
        k_pages=(k_pages, "P C G K"),
        v_pages=(v_pages, "P C G V"),
        block_table=(block_table, "N M"),
        lengths=(lengths, "N"),
        sink=(sink, "H"),
        alibi_slopes=(alibi_slopes, "H"),
        k_scale=(k_scale, "P C G"),
        v_scale=(v_scale, "P C G"),
        parents=(parents, "B T_q"),
    )
    dtype = arguments.check_one_dtype(q=q)
    _check_pages(dtype, k=(k_pages, k_scale), v=(v_pages, v_scale))
    for name, x in (("sink", sink), ("alibi_slopes", alibi_slopes)):
        arguments.check_dtype(name, x, dtype, torch.float32)
    for name, x in (("block_table", block_table), ("lengths", lengths), ("parents", parents)):
        arguments.check_dtype(name, x, *_INTEGERS)
    arguments.check_range("head dim K of q and k_pages", sizes["K"], 1, MAX_KEY_DIM)
    arguments.check_range("head dim V of v_pages", sizes["V"], 1, MAX_VALUE_DIM)
    arguments.check_range("rows of a page (C)", sizes["C"], 1, 2**31 - 1)
    arguments.check_groups(sizes, groups="k_pages and v_pages")
    arguments.check_flags(causal=causal, return_lse=return_lse)
    arguments.check_range("num_splits", arguments.check_size("num_splits", num_splits), 1, 2**15)
    if parents is not None and not causal:
        raise ValueError("parents: given with causal=False, expected causal=True")
    check_mode(mode, "fused")
    cu_seqlens = arguments.check_cu_seqlens("cu_seqlens", cu_seqlens, sizes["B"], q.device)
    sequences = count_sequences(sizes["B"], cu_seqlens)
    if sizes["N"] != sequences:
        raise ValueError(
            f"block_table: {describe(block_table)}, expected [N, M] with N={sequences} sequences"
        )
    o, lse = paged_attention_fused(
        q=q, k_pages=k_pages, v_pages=v_pages, block_table=block_table, lengths=lengths, sink=sink,
        alibi_slopes=alibi_slopes, k_scale=k_scale, v_scale=v_scale, parents=parents,
        cu_seqlens=cu_seqlens, scale=resolve_scale(scale, sizes["K"]), causal=causal,
        window=check_window(window), softcap=check_softcap(softcap), num_splits=num_splits,
        tile=tiles.choose(
            "paged_attention", "fused",
            dim=max(sizes["K"], sizes["V"]), dtype=dtype, device=q.device, tile=tile,
        ),
    )  # fmt: skip
    return o, lse if return_lse else None


@op(
    compute,
    outputs=("o", "lse"),
    about=f"Sums are float32. K is 1 to {MAX_KEY_DIM}, V 1 to {MAX_VALUE_DIM}. "
    "Pages are read in place, whatever their strides: v_pages may be the first columns of k_pages, "
    "as of latent attention. The bits of a query depend on its own keys, on the tile and on "
    "num_splits, which cuts the keys of a sequence into equal parts, merged first to last.",
    texts={
        "k_pages": "in the dtype of q, or int8 or float8_e4m3fn.",
        "v_pages": "in the dtype of k_pages.",
        "lse": "float32; None unless `return_lse`.",
        "NotImplementedError": "a gradient.",
    },
    raises=[
        f"K outside 1 to {MAX_KEY_DIM} or V outside 1 to {MAX_VALUE_DIM}",
        "H not G, 2 G, 3 G, ...",
        BAD_SCALE,
        "a window or num_splits below 1",
        BAD_SOFTCAP,
        "8-bit pages without scales",
        "a negative length",
        "a table with too few blocks for a length",
        "a page outside the pool",
        "`parents` without `causal`, of more queries than keys, or not before their children",
        "boundaries with B != 1, or that do not start at 0, decrease, or do not end at T_q",
    ],
)
def paged_attention(
    q: Float[Tensor, "B T_q H K"],
    k_pages: Float[Tensor, "P C G K"] | Int8[Tensor, "P C G K"],
    v_pages: Float[Tensor, "P C G V"] | Int8[Tensor, "P C G V"],
    block_table: Int[Tensor, "N M"],
    lengths: Int[Tensor, "N"],
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    alibi_slopes: Float[Tensor, "H"] | None = None,
    k_scale: Float[Tensor, "P C G"] | None = None,
    v_scale: Float[Tensor, "P C G"] | None = None,
    parents: Int[Tensor, "B T_q"] | None = None,
    cu_seqlens: Int[Tensor, "N+1"] | None = None,
    num_splits: int = 1,
    return_lse: bool = False,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Softmax attention to keys and values in pages, `reference.paged_attention`."""
