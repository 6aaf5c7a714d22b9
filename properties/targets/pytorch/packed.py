"""Sequences of different lengths: nested tensors and `varlen_attn`."""

import inspect
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention

from properties.targets.adapter import Implementation
from properties.targets.bounds import Bound, equal_widths
from properties.targets.pytorch.conventions import (
    HEADS_FIRST,
    SCALE,
    WINDOW,
    dense_rows,
    multiples_of_8,
    scale_of,
    ungrouped,
    with_dense_gradient,
)
from properties.targets.pytorch.masks import check_mask


def _nested(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None,
    cu_seqlens: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention with nested tensors, which must be contiguous."""

    def nested(x: Tensor, bounds: Tensor | None) -> Tensor:
        bounds = _bounds(x) if bounds is None else bounds
        return nested_tensor_from_jagged(x.flatten(0, 1).contiguous(), bounds).transpose(1, 2)

    keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    o = scaled_dot_product_attention(
        nested(q, cu_seqlens), nested(k, keys), nested(v, keys), scale=scale_of(scale)
    )
    return o.transpose(1, 2).values().view(*q.shape[:3], v.shape[-1])


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False,
    window: int | None = None, cu_seqlens: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`varlen_attn`, the flash kernel for packed sequences."""
    varlen = import_module("torch.nn.attention.varlen")
    keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    ends = [_bounds(x) if b is None else b for x, b in ((q, cu_seqlens), (k, keys))]
    check_mask(q, k, window=window, slopes=None)
    before = -1 if window is None else window - 1
    grouped = {"enable_gqa": True} if q.shape[2] != k.shape[2] else {}
    o, lse = varlen.varlen_attn(
        *(dense_rows(x).flatten(0, 1) for x in (q, k, v)),
        *(end.int() for end in ends),
        *(int(end.diff().max()) for end in ends),
        return_aux=varlen.AuxRequest(lse=True),
        scale=scale_of(scale),
        window_size=(before, 0 if causal else before),
        **grouped,
    )
    shown = lse.unflatten(1, q.shape[:2]).movedim(1, 0) if return_lse else None
    return with_dense_gradient(o.view(*q.shape[:3], v.shape[-1])), shown


def _bounds(x: Tensor) -> Tensor:
    return x.shape[1] * torch.arange(x.shape[0] + 1, device=x.device)


def on_cpu() -> dict[str, Implementation]:
    return {
        "sdpa_nested": Implementation(_nested, (HEADS_FIRST, SCALE), bounds={"H = G": ungrouped})
    }


def on_cuda() -> dict[str, Implementation]:
    bounds: dict[str, Bound] = {
        "V = K": equal_widths,
        "head dims in multiples of 8": multiples_of_8,
    }
    varlen: Any = import_module("torch.nn.attention.varlen").varlen_attn
    if "enable_gqa" not in inspect.signature(varlen).parameters:
        bounds["H = G"] = ungrouped
    return {
        **on_cpu(),
        "varlen": Implementation(
            _varlen,
            (SCALE, WINDOW),
            dtypes=("bfloat16", "float16"),
            bounds=bounds,
            constants=("lse",),
            unstated={"determinism": "its backward adds with atomics, as documented"},
        ),
    }
