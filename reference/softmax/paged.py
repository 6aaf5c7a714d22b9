"""Attention to keys and values that lie in pages, as inference engines store them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Int8, Int32, Int64
from torch import Tensor

from reference.heads import heads_per_group
from reference.op import Form, op
from reference.scale import resolve_scale
from reference.sequences import CuSeqlens, sequences
from reference.softmax.masked import finite_maximum, softmax_with_sink
from reference.softmax.run import check_softcap, check_window

ROOT = -1
Indices: TypeAlias = Int32[Tensor, "B T_q"] | Int64[Tensor, "B T_q"]


def gathered(
    q: Tensor, keys: Tensor, values: Tensor, pages: Sequence[int], length: int, *, scale: float,
    causal: bool, window: int | None, softcap: float | None, sink: Tensor | None,
    slope: Tensor | None, parents: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All rows that some query sees, one after the other, and one softmax over them."""
    T, H, size = q.shape[0], q.shape[1], keys.shape[1]
    before = length - T
    # Rows to the left of every window are not fetched: they may hold anything.
    low = min(length, max(0, before - window + 1)) if T and window is not None else 0
    high = length if T else low
    page = torch.tensor([pages[j // size] for j in range(low, high)], dtype=torch.long)
    row = torch.tensor([j % size for j in range(low, high)], dtype=torch.long)
    k, v = (x[page.to(x.device), row.to(x.device)] for x in (keys, values))
    kv_head = torch.arange(H, device=q.device) // (H // keys.shape[2])
    p = torch.arange(before, length, device=q.device)[:, None]
    j = torch.arange(low, high, device=q.device)[None, :]

    s = scale * (q.transpose(0, 1) @ k[:, kv_head].permute(1, 2, 0))
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if slope is not None:
        s = s - slope[:, None, None] * (p - j).abs()
    visible = (j <= p) if causal else torch.ones_like(j <= p)
    if window is not None:
        visible = visible & ((p - j).abs() < window)
    if parents is not None:
        related = torch.eye(T, dtype=torch.bool, device=q.device)
        for i, parent in enumerate(parents):
            if parent != ROOT:
                related[i] |= related[parent]
        visible = visible & ((j < before) | related[:, (j[0] - before).clamp(min=0)])
    s = torch.where(visible, s, -math.inf)
    no_sink = s.new_full((H, T, 1), -math.inf)
    s = torch.cat([s, no_sink if sink is None else sink.view(H, 1, 1).expand_as(no_sink)], -1)
    o, lse = softmax_with_sink(s, v[:, kv_head].transpose(0, 1))
    return o.transpose(0, 1), lse


def page_by_page(
    q: Tensor, keys: Tensor, values: Tensor, pages: Sequence[int], length: int, *, scale: float,
    causal: bool, window: int | None, softcap: float | None, sink: Tensor | None,
    slope: Tensor | None, parents: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One page after the other, each with every row that it has.

        m' = max(m, max_j s_j)
        l' = exp(m - m') l + Σ_j exp(s_j - m')
        o' = exp(m - m') o + Σ_j exp(s_j - m') v_j

    starting from m = sink, l = 1, o = 0 (without a sink m = -inf, l = 0). A row that no query sees
    counts as 0.

    Source: Milakov and Gimelshein, arXiv 1805.02867, algorithm 3; Kwon et al., arXiv 2309.06180,
        equation 4 (block by block).
    """
    T, H, size = q.shape[0], q.shape[1], keys.shape[1]
    group = H // keys.shape[2]
    p = torch.arange(length - T, length, device=q.device)
    logit = q.new_full((H,), -math.inf) if sink is None else sink
    m = logit[:, None].expand(H, T)
    l = torch.exp(m - finite_maximum(m))
    o = l[..., None] * l.new_zeros(values.shape[-1])
    # The ancestors of each query and itself, as positions.
    families = [{length - T + a for a in _ancestors(i, parents)} for i in range(T)]
    for block in range(math.ceil(length / size)):
        j = block * size + torch.arange(size, device=q.device)
        rows = []
        for i in range(T):
            distance = p[i] - j
            seen = (j < length) & (distance >= 0 if causal else distance == distance)
            if window is not None:
                seen = seen & (distance.abs() < window)
            if parents is not None:
                own = [int(x) < length - T or int(x) in families[i] for x in j]
                seen = seen & torch.tensor(own, device=q.device)
            rows.append(seen)
        visible = torch.stack(rows) if rows else j.new_zeros(0, size, dtype=torch.bool)
        read = visible.any(0)[:, None, None]
        k = torch.where(read, keys[pages[block]], 0.0).repeat_interleave(group, 1)
        v = torch.where(read, values[pages[block]], 0.0).repeat_interleave(group, 1)
        s = scale * torch.einsum("ihk,jhk->hij", q, k)
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if slope is not None:
            s = s - slope[:, None, None] * (p[:, None] - j).abs()
        s = torch.where(visible, s, -math.inf)
        new = torch.maximum(m, s.amax(-1)).detach()
        base = finite_maximum(new)
        shrink, weight = torch.exp(m - base), torch.exp(s - base[..., None])
        l = shrink * l + weight.sum(-1)
        o = shrink[..., None] * o + torch.einsum("hij,jhv->hiv", weight, v.to(weight.dtype))
        m = new
    l = torch.where(l == 0, 1.0, l)
    return (o / l[..., None]).transpose(0, 1), m + torch.log(l)


def _ancestors(i: int, parents: Sequence[int] | None) -> Iterator[int]:
    """The query itself, its parent, and so on."""
    while parents is not None and i != ROOT:
        yield i
        i = parents[i]


def run(
    form: Form, sizes: Mapping[str, int], q: Tensor, k_pages: Tensor, v_pages: Tensor,
    block_table: Tensor, lengths: Tensor, *, scale: float | None, causal: bool, window: int | None,
    softcap: float | None, sink: Tensor | None, alibi_slopes: Tensor | None, k_scale: Tensor | None,
    v_scale: Tensor | None, parents: Tensor | None, cu_seqlens: Tensor | None, num_splits: int,
    return_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Run one form over every sequence of a batch, with numbers that are no longer quantized."""
    heads_per_group("q", sizes["H"], sizes["G"], ("k_pages", "v_pages"))
    scale = resolve_scale(scale, sizes["K"])
    check_window(window)
    check_softcap(softcap)
    if num_splits < 1:
        raise ValueError(f"num_splits: {num_splits}, expected at least 1")
    for name, x, factor in (("k", k_pages, k_scale), ("v", v_pages, v_scale)):
        if x.dtype != k_pages.dtype:
            raise TypeError(f"v_pages: {x.dtype}, expected {k_pages.dtype}, that of k_pages")
        if x.dtype.itemsize == 1 and factor is None:
            raise ValueError(f"{name}_scale: None, expected the scales of 8-bit pages")
        if x.dtype.itemsize > 1 and x.dtype != q.dtype:
            raise TypeError(f"{name}_pages: {x.dtype}, expected {q.dtype} or 8 bits")
    if parents is not None and not causal:
        raise ValueError("parents: given with causal=False, expected causal=True")
    keys = _dequantized(k_pages, k_scale, q.dtype)
    values = _dequantized(v_pages, v_scale, q.dtype)
    dtype = torch.promote_types(keys.dtype, values.dtype)
    rows = [
        (b, tokens)
        for batch, tokens in sequences(cu_seqlens, q.shape[0], q.shape[1])
        for b in (range(batch.start, batch.stop) if cu_seqlens is None else (0,))
    ]
    o = []
    lse = []
    for n, (b, tokens) in enumerate(rows):
        length = int(lengths[n])
        held = _pages(block_table, n, length, k_pages.shape[1], k_pages.shape[0])
        row_o, row_lse = form(
            q[b, tokens].to(dtype),
            keys.to(dtype),
            values.to(dtype),
            held,
            length,
            scale=scale,
            causal=causal,
            window=window,
            softcap=softcap,
            sink=sink,
            slope=None if alibi_slopes is None else alibi_slopes.detach(),
            parents=None if parents is None else _tree(parents[b, tokens].tolist(), length),
        )
        o.append(row_o)
        lse.append(row_lse)
    if cu_seqlens is None:
        empty = q.new_zeros(0, *q.shape[1:3], sizes["V"])
        outputs = torch.stack(o) if o else empty
        sums = torch.stack(lse) if lse else empty[..., 0].transpose(1, 2)
    else:
        outputs, sums = torch.cat(o)[None], torch.cat(lse, -1)[None]
    return outputs.to(q.dtype), sums if return_lse else None


def _dequantized(pages: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    if scale is None:
        return pages.to(dtype)
    dtype = torch.promote_types(scale.dtype, dtype)
    return scale[..., None].to(dtype) * pages.to(dtype)


def _pages(block_table: Tensor, n: int, length: int, size: int, pool: int) -> list[int]:
    """The pages of sequence n that hold its tokens, once they are known to exist."""
    if length < 0:
        raise ValueError(f"lengths: {length} of sequence {n}, expected at least 0")
    needed, given = math.ceil(length / size), block_table.shape[1]
    if needed > given:
        raise ValueError(
            f"block_table: {given} blocks, expected {needed} for the {length} tokens of sequence "
            f"{n}, with {size} to a page"
        )
    pages: list[int] = block_table[n, :needed].tolist()
    for page in pages:
        if not 0 <= page < pool:
            raise ValueError(f"block_table: page {page} of sequence {n}, expected 0 to {pool - 1}")
    return pages


def _tree(parents: list[int], length: int) -> list[int]:
    if len(parents) > length:
        raise ValueError(
            f"parents: {len(parents)} queries of a sequence of {length} keys, expected no more "
            "queries than keys"
        )
    for i, parent in enumerate(parents):
        if not ROOT <= parent < i:
            raise ValueError(f"parents: {parent} of query {i}, expected {ROOT} to {i - 1}")
    return parents


@op(gathered, page_by_page, run=run, outputs=("o", "lse"))
def paged_attention(
    q: Float[Tensor, "B T_q H K"],
    k_pages: Float[Tensor, "P C G K"] | Int8[Tensor, "P C G K"],
    v_pages: Float[Tensor, "P C G V"] | Int8[Tensor, "P C G V"],
    block_table: Int32[Tensor, "N M"] | Int64[Tensor, "N M"],
    lengths: Int32[Tensor, "N"] | Int64[Tensor, "N"],
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    alibi_slopes: Float[Tensor, "H"] | None = None,
    k_scale: Float[Tensor, "P C G"] | None = None,
    v_scale: Float[Tensor, "P C G"] | None = None,
    parents: Indices | None = None,
    cu_seqlens: CuSeqlens | None = None,
    num_splits: int = 1,
    return_lse: bool = False,
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Softmax attention to keys and values in pages.

        k_j = k_scale · k_pages[block_table[n, j // C], j % C]         j < lengths[n]
        v_j = v_scale · v_pages[block_table[n, j // C], j % C]
        o, lse = attention of the queries of sequence n to these keys and values

    The queries are the last tokens of their sequence: query i is at position i + lengths[n] - T_q.
    One call may hold decoding steps, chunks of prompts and trees of draft tokens. No more is read
    than this: rows past the length, pages outside the table and what is left of every window may
    hold anything.

    Args:
        k_pages: Pages of C tokens each. 8-bit integers and floats need scales.
        v_pages: The same pages, in the dtype of k_pages.
        block_table: The pages of each sequence, in order. Entries after the last block, -1 by
            convention, are not read. Sequences may share pages.
        lengths: Keys of each sequence, those of the queries included.
        causal: Hide the keys after the query.
        window: W >= 1, the number of keys (tokens) seen, the query's own included; without `causal`
            another W - 1 on the other side.
        softcap: c > 0, the bound that logits are squashed to, before any bias.
        sink: Natural units: one more logit per head that has no value.
        alibi_slopes: Logits fall by the slope per token of distance. A constant: it gets no
            gradient.
        k_scale: Factor of each row of k_pages; a scale of a page or of all is an expanded tensor.
        v_scale: Factor of each row of v_pages.
        parents: The queries of each sequence form a tree: the parent of each, an earlier query
            counted from the sequence's first, or -1. A query sees the keys before all queries, its
            ancestors and itself. Distances stay those of positions. Needs `causal`.
        cu_seqlens: Boundaries of N packed sequences of queries, in tokens; B is then 1. None means
            N = B sequences.
        num_splits: How many parts of each sequence's keys are attended to apart and merged. It
            changes nothing but roundings.
        return_lse: Return the logarithm of the softmax's denominator as well.

    Returns:
        lse: Natural logarithm, in the promoted dtype of the inputs of the logits; None unless
            `return_lse`.

    Raises:
        TypeError: k_pages and v_pages of two dtypes, or neither in the dtype of q nor of 8 bits.
        ValueError: H not G, 2 G, 3 G, ...; a scale that is NaN or infinite; a window or
            num_splits below 1; a softcap that is not positive and normal in float32; 8-bit
            pages without scales; a negative length; a table with too few blocks for a length; a
            page outside the pool; `parents` without `causal`, of more queries than keys, or not
            before their children; boundaries with B != 1, or that do not start at 0, decrease, or
            do not end at T_q.

    Source: Kwon et al., PagedAttention, arXiv 2309.06180 (block tables); Miao et al., SpecInfer,
        arXiv 2305.09781 (trees); for the other terms see `reference.attention`.
    """
