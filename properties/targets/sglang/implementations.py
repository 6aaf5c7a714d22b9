"""SGLang's kernels behind the signatures of the catalogue."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.targets.adapter import Bound, Implementation, without
from properties.targets.engines import (
    NARROW,
    SCALE,
    ends,
    equal_widths,
    from_16_to_256,
    most,
    one_query,
    own_keys,
    scale_of,
)
from properties.targets.sglang.library import kernel

_FLAT = "tensors are copied to [tokens, heads, dim], dense"


def implementations(device: torch.device) -> dict[str, dict[str, Implementation]]:
    """Op → mode → implementation."""
    wide: dict[str, Bound] = {"head dims of 16 to 256": from_16_to_256}
    extend = kernel("extend_attention:extend_attention_fwd")
    return {
        "attention": {
            "prefill": Implementation(
                _prefill,
                (_FLAT, "the scale is K ** -0.5"),
                dtypes=NARROW,
                tokens=64,
                bounds={**wide, "V = K": equal_widths, "T_q = T_k": own_keys},
                forward_only=True,
            ),
            "extend": Implementation(
                _for_release(_extend, extend),
                (SCALE, _FLAT, "the first T_k - T_q keys lie in a pool", "W becomes W - 1"),
                dtypes=NARROW,
                tokens=64,
                bounds={
                    **wide,
                    "T_q <= T_k": _no_fewer_keys,
                    "a window is causal and has 2 keys or more": _causal_window,
                },
                forward_only=True,
            ),
        },
        "paged_attention": {
            "decode": Implementation(
                _for_release(_decode, kernel("decode_attention:decode_attention_fwd")),
                (SCALE, "pages are copied to rows of one pool, which a list of rows names"),
                dtypes=NARROW,
                tokens=64,
                bounds={**wide, "one query, and keys for it": one_query},
                forward_only=True,
            ),
        },
        "merge_attention": {
            "fused": Implementation(
                _merge, ("LSEs are [B, T, H], float32",), dtypes=NARROW, forward_only=True
            ),
        },
    }


def _prefill(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, cu_seqlens: Tensor | None = None
) -> Tensor:
    bounds = ends(q, cu_seqlens)
    rows = [x.flatten(0, 1).contiguous() for x in (q, k, v)]
    o = torch.empty_like(rows[0])
    run = kernel("prefill_attention:context_attention_fwd")
    counts = bounds.diff()
    run(*rows, o, bounds[:-1], counts, most(counts), is_causal=causal)
    return o.view_as(q)


def _extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:
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
    return _run_extend(
        queries, keys[new], values[new], keys, values, ends_q, before,
        scale=scale, causal=causal, window=window, softcap=softcap, sink=sink,
    ).view(*q.shape[:3], v.shape[-1])  # fmt: skip


def _run_extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    ends_q: Tensor,
    before: list[Tensor],
    *,
    scale: float | None,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sink: Tensor | None,
) -> Tensor:
    """Attend to keys in the pool and to new keys.

    Args:
        before: rows of the pool that each sequence sees before its new keys.
    """
    run = kernel("extend_attention:extend_attention_fwd")
    o = q.new_empty(*q.shape[:2], v.shape[-1])
    starts = _starts(before, q.device)
    rows = _joined(before, q.device)
    given: dict[str, Any] = {
        "custom_mask": None,
        "mask_indptr": None,
        "is_causal": causal,
        "max_len_extend": most(ends_q.diff()),
        "sm_scale": scale_of(scale, q),
        "logit_cap": float(softcap or 0.0),
        "sliding_window_size": -1 if window is None else min(window, 2**30) - 1,
    } | _newer(run, sink)
    run(q, k, v, o, k_pool, v_pool, ends_q, starts, rows, **given)
    return o


def _decode(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    num_splits: int = 1,
) -> Tensor:
    if q.ndim != 4:
        raise ValueError(f"q: {q.ndim} axes, expected 4 before they are flattened")
    run = kernel("decode_attention:decode_attention_fwd")
    size = k_pages.shape[1]
    queries = q.flatten(0, 1).contiguous()
    pools = [x.flatten(0, 1).contiguous() for x in (k_pages, v_pages)]
    rows = []
    for pages, length in zip(block_table.long(), lengths.tolist(), strict=True):
        token = torch.arange(length, device=q.device)
        rows.append(pages[token // size] * size + token % size)
    starts = _starts(rows, q.device)
    heads, width = queries.shape[1], v_pages.shape[-1]
    o = q.new_empty(len(queries), heads, width)
    logits = torch.empty(len(queries), heads, num_splits, width, device=q.device)
    lse = torch.empty(len(queries), heads, num_splits, device=q.device)
    splits = torch.full((len(queries),), num_splits, dtype=torch.int32, device=q.device)
    given: dict[str, Any] = {"logit_cap": float(softcap or 0.0)} | _newer(run, sink)
    run(
        queries, *pools, o, starts, _joined(rows, q.device), logits, lse, splits, num_splits,
        sm_scale=scale_of(scale, q), **given,
    )  # fmt: skip
    return o.view(*q.shape[:3], width)


def _merge(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    run = kernel("merge_state:merge_state_triton")
    parts = [
        x.contiguous().flatten(0, 1)
        for x in (o_a, lse_a.transpose(1, 2).float(), o_b, lse_b.transpose(1, 2).float())
    ]
    o, lse = run(*parts)
    return o.view_as(o_a), lse.view(o_a.shape[:3]).transpose(1, 2)


def _for_release(function: Callable[..., Any], library: Callable[..., Any]) -> Callable[..., Any]:
    """The function, without `sink` where the release has none."""
    return (
        function
        if "sinks" in inspect.signature(library).parameters
        else without(function, ["sink"])
    )


def _newer(run: Callable[..., Any], sink: Tensor | None) -> dict[str, Any]:
    """Arguments that only some releases have."""
    taken = inspect.signature(run).parameters
    given = {"k_scale": 1.0, "v_scale": 1.0, "sinks": None if sink is None else sink.contiguous()}
    return {name: value for name, value in given.items() if name in taken}


def _starts(rows: list[Tensor], device: torch.device) -> Tensor:
    counts = torch.tensor([0, *map(len, rows)], device=device)
    return counts.cumsum(0)


def _joined(rows: list[Tensor], device: torch.device) -> Tensor:
    return torch.cat([*rows, torch.zeros(0, dtype=torch.long, device=device)])


def _no_fewer_keys(case: Case) -> Case:
    if case.key_lengths is None:
        return case
    return replace(case, key_lengths=tuple(map(max, case.lengths, case.key_lengths)))


def _causal_window(case: Case) -> Case:
    window = case.options.get("window")
    if window is None:
        return case
    return replace(case, options={**case.options, "window": max(2, window), "causal": True})
