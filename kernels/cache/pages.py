"""The Triton kernels of the caches: append tokens to pages, gather pages into packed order.

Every cache stores its keys and values in pages, `[P, page_size, G, D]`, and a table
`[N, blocks]` says which page holds which tokens of a sequence:

    the token at position p of sequence n lies in row p % page_size of page table[n, p // page_size]

A contiguous cache is one page of `capacity` tokens per sequence. With `ring` the page of a sequence
holds its first `sinks` tokens, and behind them a ring of its last ones: position p >= sinks lies in
row sinks + (p - sinks) % (page_size - sinks) of page table[n, 0]. Keys and values have each their
own head dim and strides.

The ops trust their tables and lengths; the cache classes check them on the host, where they live.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import bind_dims
from kernels.tiles import cdiv, next_power_of_2


@triton.jit
def _page_and_row(table, position, page_size, sinks, mask, RING: tl.constexpr):
    """The page and row of tokens at `position` of one sequence; `table` points at its pages."""
    if RING:
        block = tl.zeros_like(position)
        turn = sinks + (position - sinks) % (page_size - sinks)
        row = tl.where(position < sinks, position, turn)
    else:
        block = position // page_size
        row = position % page_size
    page = tl.load(table + block, mask=mask).to(tl.int64)
    return page, row


@triton.jit
def _append_rows(
    x, pages, n, t, g, page, row, new,
    stride_xn, stride_xt, stride_xg, stride_xd,
    stride_p, stride_r, stride_pg, stride_pd,
    D, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Copy the rows of keys, or of values, that are `new` to their pages."""
    d = tl.arange(0, BLOCK_D).to(tl.int64)
    mask = new[:, None] & (d < D)[None, :]
    source = (n * stride_xn + g * stride_xg + t * stride_xt)[:, None] + d[None, :] * stride_xd
    target = (page * stride_p + row * stride_r + g * stride_pg)[:, None] + d[None, :] * stride_pd
    tl.store(pages + target, tl.load(x + source, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["blocks_per_sequence", "sinks"])
def _append_kernel(
    k, v, k_pages, v_pages, table, length, offset,
    blocks_per_sequence, page_size, sinks, stride_table,
    stride_kn, stride_kt, stride_kg, stride_kd,
    stride_vn, stride_vt, stride_vg, stride_vd,
    stride_kp, stride_kr, stride_kpg, stride_kpd,
    stride_vp, stride_vr, stride_vpg, stride_vpd,
    K, V,
    RING: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Append BLOCK_T new tokens of one sequence: the keys and the values of kv head g."""
    # 64-bit throughout: an index times a stride of batch, page or token passes 2^31 in real caches.
    block = tl.program_id(0).to(tl.int64)
    g = tl.program_id(1).to(tl.int64)
    n = block // blocks_per_sequence
    t = (block % blocks_per_sequence) * BLOCK_T + tl.arange(0, BLOCK_T)
    count = tl.load(offset + n)
    new = t < count
    if RING:
        # In a chunk longer than the ring, early tokens would race with late ones for their rows.
        new = new & (t >= count - page_size)
    position = tl.load(length + n) + t
    page, row = _page_and_row(table + n * stride_table, position, page_size, sinks, new, RING)
    _append_rows(
        k, k_pages, n, t, g, page, row, new,
        stride_kn, stride_kt, stride_kg, stride_kd,
        stride_kp, stride_kr, stride_kpg, stride_kpd,
        K, BLOCK_K,
    )  # fmt: skip
    _append_rows(
        v, v_pages, n, t, g, page, row, new,
        stride_vn, stride_vt, stride_vg, stride_vd,
        stride_vp, stride_vr, stride_vpg, stride_vpd,
        V, BLOCK_V,
    )  # fmt: skip


@triton.jit
def _gather_rows(
    packed, x, pages, n, t, g, page, row, target, stored, fresh,
    stride_xn, stride_xt, stride_xg, stride_xd,
    stride_p, stride_r, stride_pg, stride_pd,
    D, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Pack rows of keys, or of values: `stored` ones from the pages, `fresh` ones from x."""
    d = tl.arange(0, BLOCK_D).to(tl.int64)
    exists = (d < D)[None, :]
    at = (page * stride_p + row * stride_r + g * stride_pg)[:, None] + d[None, :] * stride_pd
    old = tl.load(pages + at, mask=stored[:, None] & exists)
    at = (n * stride_xn + g * stride_xg + t * stride_xt)[:, None] + d[None, :] * stride_xd
    new = tl.load(x + at, mask=fresh[:, None] & exists)
    rows = tl.where(stored[:, None], old, new)
    inside = (stored | fresh)[:, None] & exists
    tl.store(packed + target[:, None] * D + d[None, :], rows, mask=inside)


@triton.jit(do_not_specialize=["blocks_per_sequence", "sinks"])
def _gather_kernel(
    k_packed, v_packed, k, v, k_pages, v_pages, table, first, length, cu_seqlens_k,
    blocks_per_sequence, page_size, sinks, stride_table,
    stride_kn, stride_kt, stride_kg, stride_kd,
    stride_vn, stride_vt, stride_vg, stride_vd,
    stride_kp, stride_kr, stride_kpg, stride_kpd,
    stride_vp, stride_vr, stride_vpg, stride_vpd,
    G, K, V,
    RING: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Pack BLOCK_T tokens of one sequence, stored and new: the keys and the values of kv head g."""
    block = tl.program_id(0).to(tl.int64)
    g = tl.program_id(1).to(tl.int64)
    n = block // blocks_per_sequence
    j = (block % blocks_per_sequence) * BLOCK_T + tl.arange(0, BLOCK_T)
    start = tl.load(cu_seqlens_k + n)
    inside = j < tl.load(cu_seqlens_k + n + 1) - start
    old_length = tl.load(length + n)
    position = tl.where(j < sinks, j, tl.load(first + n) + j - sinks)
    stored = inside & (position < old_length)
    fresh = inside & (position >= old_length)
    page, row = _page_and_row(table + n * stride_table, position, page_size, sinks, stored, RING)
    target = (start + j) * G + g
    _gather_rows(
        k_packed, k, k_pages, n, position - old_length, g, page, row, target, stored, fresh,
        stride_kn, stride_kt, stride_kg, stride_kd,
        stride_kp, stride_kr, stride_kpg, stride_kpd,
        K, BLOCK_K,
    )  # fmt: skip
    _gather_rows(
        v_packed, v, v_pages, n, position - old_length, g, page, row, target, stored, fresh,
        stride_vn, stride_vt, stride_vg, stride_vd,
        stride_vp, stride_vr, stride_vpg, stride_vpd,
        V, BLOCK_V,
    )  # fmt: skip


def _blocks(key_dim: int, value_dim: int) -> dict[str, int]:
    """Tile sizes: about 4096 elements of keys and of values each in a program's registers."""
    block_k = next_power_of_2(key_dim)
    block_v = next_power_of_2(value_dim)
    block_t = max(1, min(64, 4096 // max(block_k, block_v)))
    return {"BLOCK_T": block_t, "BLOCK_K": block_k, "BLOCK_V": block_v}


@torch.library.custom_op("attention_oracles::cache_append", mutates_args=("k_pages", "v_pages"))
def append(
    k: Tensor,
    v: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    length: Tensor,
    offset: Tensor,
    ring: bool,
    sinks: int = 0,
) -> None:
    """Write the first `offset[n]` tokens of each sequence behind its `length[n]` tokens.

    Args:
        k, v: new keys [N, T, G, K] and values [N, T, G, V].
        k_pages, v_pages: the storage, [P, page_size, G, K] and [P, page_size, G, V].
        table: Int32[N, blocks], the pages of each sequence.
        length, offset: Int64[N], tokens before and new tokens.
        ring, sinks: the page of a sequence holds its first `sinks` tokens and its last ones. With
            sinks an update has at most one token.
    """
    sizes = _check(k, v, k_pages, v_pages, table, length, offset)
    blocks = _blocks(sizes["K"], sizes["V"])
    per_sequence = cdiv(sizes["T"], blocks["BLOCK_T"])
    grid = (sizes["N"] * per_sequence, sizes["G"])
    with torch.cuda.device_of(k):
        _append_kernel[grid](
            k, v, k_pages, v_pages, table, length, offset,
            per_sequence, sizes["page_size"], sinks, table.stride(0),
            *k.stride(), *v.stride(), *k_pages.stride(), *v_pages.stride(),
            sizes["K"], sizes["V"],
            RING=ring, **blocks,
        )  # fmt: skip


@append.register_fake
def _(k, v, k_pages, v_pages, table, length, offset, ring, sinks=0):
    _check(k, v, k_pages, v_pages, table, length, offset)


@torch.library.custom_op("attention_oracles::cache_gather", mutates_args=())
def gather(
    k: Tensor,
    v: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    first: Tensor,
    length: Tensor,
    cu_seqlens_k: Tensor,
    tokens: int,
    longest: int,
    ring: bool,
    sinks: int = 0,
) -> tuple[Tensor, Tensor]:
    """Pack the stored and the new tokens, sequence after sequence.

    Token j of sequence n has position j if it is a sink, else `first[n] + j - sinks`. It comes from
    the pages if that is below `length[n]` and from `k`, `v` otherwise. The storage is only read, so
    that a ring still holds the tokens that the new ones are going to replace.

    Args:
        k, v, k_pages, v_pages, table, length, ring, sinks: as in `append`.
        first: Int64[N], the position of the first token wanted behind the sinks.
        cu_seqlens_k: Int32[N+1], where each sequence starts in the result.
        tokens, longest: `cu_seqlens_k[-1]` and the longest sequence, known to the host.

    Returns:
        keys [1, tokens, G, K] and values [1, tokens, G, V].
    """
    sizes = _check(k, v, k_pages, v_pages, table, length, first)
    k_packed = k.new_empty(1, tokens, sizes["G"], sizes["K"])
    v_packed = v.new_empty(1, tokens, sizes["G"], sizes["V"])
    blocks = _blocks(sizes["K"], sizes["V"])
    per_sequence = cdiv(longest, blocks["BLOCK_T"])
    grid = (sizes["N"] * per_sequence, sizes["G"])
    with torch.cuda.device_of(k):
        _gather_kernel[grid](
            k_packed, v_packed, k, v, k_pages, v_pages, table, first, length, cu_seqlens_k,
            per_sequence, sizes["page_size"], sinks, table.stride(0),
            *k.stride(), *v.stride(), *k_pages.stride(), *v_pages.stride(),
            sizes["G"], sizes["K"], sizes["V"],
            RING=ring, **blocks,
        )  # fmt: skip
    return k_packed, v_packed


@gather.register_fake
def _(
    k, v, k_pages, v_pages, table, first, length, cu_seqlens_k, tokens, longest, ring, sinks=0
):  # fmt: skip
    sizes = _check(k, v, k_pages, v_pages, table, length, first)
    return (
        k.new_empty(1, tokens, sizes["G"], sizes["K"]),
        v.new_empty(1, tokens, sizes["G"], sizes["V"]),
    )


def _check(
    k: Tensor,
    v: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    length: Tensor,
    other: Tensor,
) -> dict[str, int]:
    return bind_dims(
        k=(k, "N T G K"),
        v=(v, "N T G V"),
        k_pages=(k_pages, "P page_size G K"),
        v_pages=(v_pages, "P page_size G V"),
        table=(table, "N blocks"),
        length=(length, "N"),
        other=(other, "N"),
    )
