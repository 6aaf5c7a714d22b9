"""SGLang's kernels behind the signatures of the catalogue."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.targets.adapter import Implementation
from properties.targets.bounds import equal_widths, fixed_options, own_keys
from properties.targets.engines import (
    FEW_TOKENS,
    LATENT,
    NOT_LINEAR,
    SCALE,
    UNCHECKED,
    WIDE,
    as_taken,
    ends,
    engine_kernel,
    first_channels,
    most,
    one_query,
    scale_of,
    takes,
    those_taken,
)
from properties.targets.sglang.library import kernel

_PREFILL = "prefill_attention:context_attention_fwd"
_EXTEND = "extend_attention:extend_attention_fwd"
_DECODE = "decode_attention:decode_attention_fwd"
_MERGE = "merge_state:merge_state_triton"
_FLAT = "tensors are copied to [tokens, heads, dim], dense"
_ROWS = "pages are copied to rows of one pool, which a list of rows names"


def _prefill_of_release() -> Implementation:
    run = kernel(_PREFILL)
    return engine_kernel(
        as_taken(_prefill, run, scale="sm_scale"),
        (SCALE, _FLAT),
        tokens=64,
        bounds={**WIDE, "V = K": equal_widths, "T_q = T_k": own_keys},
        unstated={**UNCHECKED, **FEW_TOKENS},
    )


def _extend_of_release() -> Implementation:
    run = kernel(_EXTEND)
    bounds = {
        **WIDE,
        "T_q <= T_k": _no_fewer_keys,
        "a window is causal and has 2 keys or more": _causal_window,
    }
    if not takes(run, "is_causal"):
        bounds["causal"] = fixed_options(causal=True)
    newer = {"window": "sliding_window_size", "sink": "sinks", "return_lse": "lse_extend"}
    return engine_kernel(
        as_taken(_extend, run, **newer),
        (SCALE, _FLAT, "the first T_k - T_q keys lie in a pool", "W becomes W - 1"),
        tokens=64,
        bounds=bounds,
        unstated={
            **UNCHECKED,
            **FEW_TOKENS,
            "merging": "its parts have fewer keys than queries",
        },
    )


def _decode_of_release() -> Implementation:
    return engine_kernel(
        as_taken(_decode, kernel(_DECODE), sink="sinks"),
        (SCALE, _ROWS),
        tokens=64,
        bounds={**WIDE, "one query, and keys for it": one_query},
    )


def _latent_of_release() -> Implementation:
    return engine_kernel(
        as_taken(_latent, kernel(_DECODE), sink="sinks"),
        (SCALE, _ROWS),
        tokens=64,
        bounds={**LATENT, "one query, and keys for it": one_query},
        unstated={**UNCHECKED, **NOT_LINEAR},
    )


def _merge_of_release() -> Implementation:
    kernel(_MERGE)
    return engine_kernel(
        _merged,
        ("LSEs are [B, T, H], float32",),
        unstated={**UNCHECKED, **FEW_TOKENS},
    )


def _prefill(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    bounds = ends(q, cu_seqlens)
    rows = [x.flatten(0, 1).contiguous() for x in (q, k, v)]
    o = torch.empty_like(rows[0])
    run = kernel(_PREFILL)
    counts = bounds.diff()
    given = those_taken(run, sm_scale=scale_of(scale, q))
    run(*rows, o, bounds[:-1], counts, most(counts), is_causal=causal, **given)
    return o.view_as(q)


def _extend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False,
    window: int | None = None, softcap: float | None = None, sink: Tensor | None = None,
    cu_seqlens: Tensor | None = None, cu_seqlens_k: Tensor | None = None, return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    ends_q = ends(q, cu_seqlens)
    ends_k = ends(k, cu_seqlens if cu_seqlens_k is None else cu_seqlens_k)
    if len(ends_q) != len(ends_k) or bool((ends_k.diff() < ends_q.diff()).any()):
        raise ValueError("cu_seqlens_k: expected as many keys as queries, or more")
    if window is not None and (window < 2 or not causal):
        raise ValueError(f"window: {window!r}, expected None or 2 and more, with causal")
    queries, keys, values = (x.flatten(0, 1).contiguous() for x in (q, k, v))
    before, last = [], []
    for start, end, count in zip(ends_k[:-1], ends_k[1:], ends_q.diff(), strict=True):
        rows = torch.arange(int(start), int(end), device=q.device)
        own = len(rows) - int(count)
        before.append(rows[:own])
        last.append(rows[own:])
    new = _joined(last, q.device)
    o, lse = _run_extend(
        queries, keys[new], values[new], keys, values, ends_q, before,
        scale=scale, causal=causal, window=window, softcap=softcap, sink=sink,
        return_lse=return_lse,
    )  # fmt: skip
    rows_of_lse = None if lse is None else lse.view(q.shape[:3]).transpose(1, 2)
    return o.view(*q.shape[:3], v.shape[-1]), rows_of_lse


def _run_extend(
    q: Tensor, k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, ends_q: Tensor,
    before: list[Tensor], *, scale: float | None, causal: bool, window: int | None,
    softcap: float | None, sink: Tensor | None, return_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attend to keys in the pool and to new keys.

    Args:
        before: rows of the pool that each sequence sees before its new keys.
    """
    run = kernel(_EXTEND)
    o = q.new_empty(*q.shape[:2], v.shape[-1])
    lse = torch.empty(q.shape[:2], device=q.device) if return_lse else None
    starts, rows = _starts(before, q.device), _named(before, run, q.device)
    given: dict[str, Any] = {
        "custom_mask": None,
        "mask_indptr": None,
        "max_len_extend": most(ends_q.diff()),
        "sm_scale": scale_of(scale, q),
        "logit_cap": float(softcap or 0.0),
    }
    given |= those_taken(
        run,
        is_causal=causal,
        sliding_window_size=-1 if window is None else min(window, 2**30) - 1,
        k_scale=1.0,
        v_scale=1.0,
        sinks=_dense(sink),
        lse_extend=lse,
    )
    run(q, k, v, o, k_pool, v_pool, ends_q, starts, rows, **given)
    return o, lse


def _decode(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
    scale: float | None = None, softcap: float | None = None, sink: Tensor | None = None,
    cu_seqlens: Tensor | None = None, num_splits: int = 1,
) -> Tensor:  # fmt: skip
    k_pool, v_pool = (x.flatten(0, 1).contiguous() for x in (k_pages, v_pages))
    rows = _rows(block_table, lengths, k_pages.shape[1])
    return _run_decode(
        q, k_pool, v_pool, rows, scale=scale, softcap=softcap, sink=sink, num_splits=num_splits
    )


def _latent(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
    scale: float | None = None, softcap: float | None = None, sink: Tensor | None = None,
    cu_seqlens: Tensor | None = None, num_splits: int = 1,
) -> Tensor:  # fmt: skip
    pool = k_pages.flatten(0, 1).contiguous()
    rows = _rows(block_table, lengths, k_pages.shape[1])
    return _run_decode(
        q, pool, first_channels(pool, k_pages, v_pages), rows,
        scale=scale, softcap=softcap, sink=sink, num_splits=num_splits, has_mla=True,
    )  # fmt: skip


def _rows(block_table: Tensor, lengths: Tensor, size: int) -> list[Tensor]:
    """Rows of the pool that each sequence sees."""
    rows = []
    for pages, length in zip(block_table.long(), lengths.tolist(), strict=True):
        token = torch.arange(length, device=block_table.device)
        rows.append(pages[token // size] * size + token % size)
    return rows


def _run_decode(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, rows: list[Tensor], *, scale: float | None,
    softcap: float | None, sink: Tensor | None, num_splits: int, has_mla: bool = False,
) -> Tensor:  # fmt: skip
    if q.ndim != 4:
        raise ValueError(f"q: {q.ndim} axes, expected 4 before they are flattened")
    run = kernel(_DECODE)
    queries = q.flatten(0, 1).contiguous()
    heads, width = queries.shape[1], v_pool.shape[-1]
    o = q.new_empty(len(queries), heads, width)
    # Before the LSEs of splits had a tensor of their own, they lay behind the outputs.
    apart = takes(run, "attn_lse")
    logits = torch.empty(
        len(queries), heads, num_splits, width if apart else width + 1, device=q.device
    )
    splits: int | Tensor = num_splits
    if takes(run, "max_kv_splits"):
        splits = torch.full((len(queries),), num_splits, dtype=torch.int32, device=q.device)
    given = those_taken(
        run,
        attn_lse=torch.empty(len(queries), heads, num_splits, device=q.device),
        max_kv_splits=num_splits,
        k_scale=1.0,
        v_scale=1.0,
        sinks=_dense(sink),
        has_mla=has_mla,
    )
    run(
        queries, k_pool, v_pool, o, _starts(rows, q.device), _named(rows, run, q.device), logits,
        num_kv_splits=splits, sm_scale=scale_of(scale, q), logit_cap=float(softcap or 0.0), **given,
    )  # fmt: skip
    return o.view(*q.shape[:3], width)


def _merged(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    run = kernel(_MERGE)
    parts = [
        x.contiguous().flatten(0, 1)
        for x in (o_a, lse_a.transpose(1, 2).float(), o_b, lse_b.transpose(1, 2).float())
    ]
    o, lse = run(*parts)
    return o.view_as(o_a), lse.view(o_a.shape[:3]).transpose(1, 2)


def _dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _starts(rows: list[Tensor], device: torch.device) -> Tensor:
    counts = torch.tensor([0, *map(len, rows)], device=device)
    return counts.cumsum(0, dtype=torch.int32)


def _named(rows: list[Tensor], run: Callable[..., Any], device: torch.device) -> Tensor:
    """The rows of all sequences on end. Releases whose kernels take no sinks count in int32."""
    joined = _joined(rows, device)
    return joined if takes(run, "sinks") else joined.int()


def _joined(rows: list[Tensor], device: torch.device) -> Tensor:
    return torch.cat([*rows, torch.zeros(0, dtype=torch.long, device=device)])


def _no_fewer_keys(case: Case) -> Case:
    if case.key_lengths is None:
        return case
    # Fewer queries, since more keys could be too many for the oracle.
    return replace(case, lengths=tuple(map(min, case.lengths, case.key_lengths)))


def _causal_window(case: Case) -> Case:
    window = case.options.get("window")
    if window is None:
        return case
    return case.with_options(window=max(2, window), causal=True)


DECLARED: dict[str, dict[str, Callable[[], Implementation]]] = {
    "attention": {"prefill": _prefill_of_release, "extend": _extend_of_release},
    "paged_attention": {"decode": _decode_of_release, "latent": _latent_of_release},
    "merge_attention": {"fused": _merge_of_release},
}
"""Op → mode → its implementation, made if the release has it."""
