"""vLLM's kernels behind the signatures of the catalogue."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from triton import next_power_of_2

from properties.cases.case import Case
from properties.targets.adapter import Implementation, without
from properties.targets.bounds import (
    Bound,
    changed_dims,
    equal_widths,
    fixed_options,
    not_empty,
    own_keys,
    with_keys,
)
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
from properties.targets.vllm.library import VLLM, Quantization

_UNIFIED = "triton_unified_attention:unified_attention"
_CHUNKED = "chunked_prefill_paged_decode:chunked_prefill_paged_decode"
_PREFILL = "triton_prefill_attention:context_attention_fwd"
_DECODE = "triton_decode_attention:decode_attention_fwd"
_MERGE = "triton_merge_attn_states:merge_attn_states"
# Keys of a tile: the kernel reads the block table for all of them.
_TILE = 32
_PAGES = changed_dims("C", lambda n: n if n in (16, 32, 64) else 16 << n % 3)
# Arguments that `unified_attention` got after its first releases, by our names and its own.
_NEWER = {
    "sink": "sinks",
    "k_scale": "k_scale_cache",
    "v_scale": "v_scale_cache",
    "num_splits": "num_par_softmax_segments",
}


def _unified_of_release() -> Implementation:
    run = VLLM.function(_UNIFIED)
    lacking = [ours for ours, theirs in _NEWER.items() if not takes(run, theirs)]
    bounds: dict[str, Bound] = {
        **WIDE,
        "V = K": equal_widths,
        "no fewer keys than queries, and one": with_keys,
        "slopes beside causal and no sink": _causal_slopes,
    }
    if lacking:
        bounds["causal"] = fixed_options(causal=True)
        bounds["pages of 16, 32 or 64 tokens"] = _PAGES
    return engine_kernel(
        without(_unified, lacking),
        (
            SCALE,
            "tables and lengths are int32, dense",
            "tables have room for a tile of keys more",
            "the window is (W - 1, 0), or (-1, -1)",
        ),
        tokens=64,
        bounds=bounds,
    )


def _chunked_of_release() -> Implementation:
    return engine_kernel(
        as_taken(_chunked, VLLM.function(_CHUNKED), sink="sinks"),
        (
            SCALE,
            "tables and lengths are int32, dense",
            "tables have room for a tile of keys more",
            "pages of keys are copied to [P, G, K / 8, C, 8], and of values to [P, G, V, C]",
            "keys of the queries' own tokens are copied, dense",
        ),
        tokens=64,
        bounds={
            "head dims of 16 to 256, in eights": changed_dims(
                "KV", lambda n: min(max(n // 8 * 8, 16), 256)
            ),
            "V = K": equal_widths,
            "causal": fixed_options(causal=True),
            "pages of 16, 32 or 64 tokens": _PAGES,
            "a query of each sequence": not_empty,
            "no fewer keys than queries": with_keys,
            "slopes beside no sink and no window": _slopes_alone,
        },
    )


def _decode_of_release() -> Implementation:
    return engine_kernel(
        as_taken(_decode, VLLM.function(_DECODE), return_lse="lse"),
        (SCALE, "tables and lengths are int32, dense", "pages are copied, dense"),
        tokens=64,
        bounds={**WIDE, "one query, and keys": one_query},
    )


def _latent_of_release() -> Implementation:
    return engine_kernel(
        as_taken(_latent, VLLM.function(_DECODE), return_lse="lse"),
        (SCALE, "tables and lengths are int32, dense", "pages are copied, dense"),
        tokens=64,
        bounds={
            **LATENT,
            "keys as wide as values, or wider by 16 and more": _wider_keys,
            "one query, and keys": one_query,
        },
        unstated={**UNCHECKED, **NOT_LINEAR},
    )


def _prefill_of_release() -> Implementation:
    return engine_kernel(
        as_taken(_prefill, VLLM.function(_PREFILL), sink="sinks"),
        (SCALE, "tensors are copied to [tokens, heads, dim], dense"),
        tokens=64,
        bounds={
            **WIDE,
            "V = K": equal_widths,
            "T_q = T_k": own_keys,
            "a window has 2 keys or more": _wide_window,
        },
        unstated={**UNCHECKED, **FEW_TOKENS},
    )


def _merge_of_release() -> Implementation:
    VLLM.function(_MERGE)
    return engine_kernel(_merge, ("LSEs are float32",), unstated={**UNCHECKED, **FEW_TOKENS})


def _prefill(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False,
    window: int | None = None, sink: Tensor | None = None, cu_seqlens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    bounds = ends(q, cu_seqlens)
    rows = [x.flatten(0, 1).contiguous() for x in (q, k, v)]
    o = torch.empty_like(rows[0])
    counts = bounds.diff()
    run = VLLM.function(_PREFILL)
    run(
        *rows, o, bounds[:-1], counts, most(counts), is_causal=causal,
        softmax_scale=scale_of(scale, q),
        sliding_window_q=None if window is None else window - 1,
        sliding_window_k=None if window is None else window - 1,
        **those_taken(run, sinks=None if sink is None else sink.contiguous()),
    )  # fmt: skip
    return o.view_as(q)


def _unified(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
    scale: float | None = None, causal: bool = False, window: int | None = None,
    softcap: float | None = None, sink: Tensor | None = None, alibi_slopes: Tensor | None = None,
    k_scale: Tensor | None = None, v_scale: Tensor | None = None, cu_seqlens: Tensor | None = None,
    num_splits: int = 1,
) -> Tensor:  # fmt: skip
    queries = q.flatten(0, 1).contiguous()
    bounds = ends(q, cu_seqlens)
    o = torch.empty_like(queries)
    given: dict[str, Any] = {}
    if sink is not None:
        given["sinks"] = sink.contiguous()
    if alibi_slopes is not None:
        given["alibi_slopes"] = alibi_slopes.contiguous()
    if k_scale is not None or v_scale is not None:
        ones = torch.ones(k_pages.shape[:3], device=q.device)
        given["k_scale_cache"] = ones if k_scale is None else k_scale.float()
        given["v_scale_cache"] = ones if v_scale is None else v_scale.float()
        given["kv_quant_mode"] = (
            Quantization.INT8_PER_TOKEN_HEAD
            if k_pages.dtype == torch.int8
            else Quantization.FP8_PER_TOKEN_HEAD
        )
    if num_splits > 1:
        parts = (*queries.shape[:2], next_power_of_2(num_splits))
        given |= {
            "seq_threshold_3D": len(queries) + len(lengths),
            "num_par_softmax_segments": parts[-1],
            "softmax_segm_output": torch.empty(
                *parts, next_power_of_2(q.shape[-1]), device=q.device
            ),
            "softmax_segm_max": torch.empty(parts, device=q.device),
            "softmax_segm_expsum": torch.empty(parts, device=q.device),
        }
    table, lengths = _dense(pad(block_table, (0, _TILE))), _dense(lengths)
    VLLM.function(_UNIFIED)(
        queries, k_pages, v_pages, o, bounds, most(bounds.diff()), lengths, most(lengths),
        scale_of(scale, q), causal, (-1, -1) if window is None else (window - 1, 0),
        table, float(softcap or 0.0), None, None, None, **given,
    )  # fmt: skip
    return o.view_as(q)


def _chunked(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
    scale: float | None = None, causal: bool = False, window: int | None = None,
    sink: Tensor | None = None, alibi_slopes: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if not causal:
        raise ValueError("causal: False, expected True")
    run = VLLM.function(_CHUNKED)
    queries = q.flatten(0, 1).contiguous()
    o, bounds = torch.empty_like(queries), ends(q, cu_seqlens)
    # Rows of the pages that hold the keys of the queries' own tokens.
    rows = []
    for pages, count, length in zip(block_table, bounds.diff(), lengths, strict=True):
        token = torch.arange(int(length - count), int(length), device=q.device)
        rows.append(pages[token // k_pages.shape[1]] * k_pages.shape[1] + token % k_pages.shape[1])
    own = torch.cat(rows).long()
    keys, values = (x.flatten(0, 1)[own] for x in (k_pages, v_pages))
    one = torch.ones(1, device=q.device)
    run(
        queries, keys, values, o, "auto",
        k_pages.unflatten(-1, (-1, 8)).permute(0, 2, 3, 1, 4).contiguous(),
        v_pages.permute(0, 2, 3, 1).contiguous(),
        _dense(pad(block_table, (0, _TILE))), bounds, _dense(lengths), most(lengths),
        most(bounds.diff()), one, one, sm_scale=scale_of(scale, q), sliding_window=window,
        alibi_slopes=None if alibi_slopes is None else alibi_slopes.float().contiguous(),
        **those_taken(run, sinks=None if sink is None else sink.contiguous()),
    )  # fmt: skip
    return o.view_as(q)


def _decode(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
    scale: float | None = None, softcap: float | None = None, cu_seqlens: Tensor | None = None,
    num_splits: int = 1, return_lse: bool = False,
) -> tuple[Tensor, Tensor | None] | Tensor:  # fmt: skip
    return _run_decode(
        q, _copied(k_pages), _copied(v_pages), block_table, lengths,
        scale=scale, softcap=softcap, num_splits=num_splits, return_lse=return_lse,
    )  # fmt: skip


def _latent(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
    scale: float | None = None, softcap: float | None = None, cu_seqlens: Tensor | None = None,
    num_splits: int = 1, return_lse: bool = False,
) -> tuple[Tensor, Tensor | None] | Tensor:  # fmt: skip
    pages = _copied(k_pages)
    return _run_decode(
        q, pages, first_channels(pages, k_pages, v_pages), block_table, lengths,
        scale=scale, softcap=softcap, num_splits=num_splits, return_lse=return_lse, is_mla=True,
    )  # fmt: skip


def _run_decode(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
    scale: float | None, softcap: float | None, num_splits: int, return_lse: bool,
    is_mla: bool = False,
) -> tuple[Tensor, Tensor | None] | Tensor:  # fmt: skip
    run = VLLM.function(_DECODE)
    queries = q.flatten(0, 1).contiguous()
    heads, width = queries.shape[1], v_pages.shape[-1]
    o = q.new_empty(len(queries), heads, width)
    lse = torch.empty(len(queries), heads, device=q.device)
    parts = torch.empty(len(queries), heads, num_splits, width + 1, device=q.device)
    outputs = (o, lse) if takes(run, "lse") else (o,)
    run(
        queries, k_pages, v_pages, *outputs, _dense(block_table), _dense(lengths), parts,
        num_splits, scale_of(scale, q), k_pages.shape[1], float(softcap or 0.0),
        **those_taken(run, is_mla=is_mla),
    )  # fmt: skip
    o = o.view(*q.shape[:3], width)
    if len(outputs) == 1:
        return o
    return o, lse.view(q.shape[:3]).transpose(1, 2) if return_lse else None


def _copied(pages: Tensor) -> Tensor:
    """Rows are counted through all pages, by the stride of the tokens of one."""
    return pages.clone(memory_format=torch.contiguous_format)


def _merge(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    (B, T, H, _), device = o_a.shape, o_a.device
    parts = [
        x.contiguous()
        for o, lse in ((o_a, lse_a), (o_b, lse_b))
        for x in (o.flatten(0, 1), lse.float().transpose(0, 1).flatten(1, 2))
    ]
    o, lse = torch.empty_like(parts[0]), torch.empty(H, B * T, device=device)
    VLLM.function(_MERGE)(o, *parts, lse)
    return o.view_as(o_a), lse.view(H, B, T).transpose(0, 1)


def _dense(x: Tensor) -> Tensor:
    return x.int().contiguous()


def _wider_keys(case: Case) -> Case:
    more = case.dims["K"] - case.dims["V"]
    if 0 < more < 16:
        return case.with_dims(K=case.dims["V"] + 16)
    return case


def _causal_slopes(case: Case) -> Case:
    """Its bias counts from a sequence's first query, which changes a causal row by a constant."""
    if "alibi_slopes" not in case.given:
        return case
    given = tuple(name for name in case.given if name != "sink")
    return replace(case, given=given).with_options(causal=True)


def _slopes_alone(case: Case) -> Case:
    if "alibi_slopes" not in case.given:
        return case
    given = tuple(name for name in case.given if name != "sink")
    return replace(case, given=given).with_options(window=None)


def _wide_window(case: Case) -> Case:
    window = case.options.get("window")
    if window is None:
        return case
    return case.with_options(window=max(2, window))


DECLARED: dict[str, dict[str, Callable[[], Implementation]]] = {
    "attention": {"prefill": _prefill_of_release},
    "paged_attention": {
        "unified": _unified_of_release,
        "chunked": _chunked_of_release,
        "decode": _decode_of_release,
        "latent": _latent_of_release,
    },
    "merge_attention": {"fused": _merge_of_release},
}
"""Op → mode → its implementation, made if the release has it."""
