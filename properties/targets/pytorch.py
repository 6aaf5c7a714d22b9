"""PyTorch's own attention: `scaled_dot_product_attention` by backend, and FlexAttention."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.nested import nested_tensor_from_jagged
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import (
    AuxRequest,
    create_block_mask,
    flex_attention,
)
from torch.nn.functional import scaled_dot_product_attention

from properties.case import Case
from properties.catalogue.op import Function
from properties.targets.adapter import Adapter, Implementation

_SCALE = "-1 is a number; the sentinel becomes None"
_HEADS_FIRST = "tensors are [B, H, T, D]"
_CAUSAL = "is_causal aligns at the top left; where T_q != T_k the mask is written out"
# Keys per block of the flash kernel for CPUs.
_FLASH_KEYS = 512
_MASKS = "window and ALiBi are masks, ALiBi a float32 one"


def _equal_widths(case: Case) -> Case:
    return replace(case, dims={**case.dims, "V": case.dims["K"]})


def _sdpa(*backends: SDPBackend) -> Function:
    """`scaled_dot_product_attention` with one backend, or with the one that it chooses."""

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: int | None = None,
        alibi_slopes: Tensor | None = None,
    ) -> Tensor:
        square = q.shape[1] == k.shape[1]
        top_left = causal and square and window is None and alibi_slopes is None
        mask = None if top_left else _mask(q, k, causal, window, alibi_slopes)
        chosen: AbstractContextManager[None] = (
            sdpa_kernel(list(backends)) if backends else nullcontext()
        )
        with chosen:
            o = scaled_dot_product_attention(
                _heads_first(q),
                _heads_first(k),
                _heads_first(v),
                attn_mask=mask,
                is_causal=top_left,
                scale=_scale(scale),
                enable_gqa=q.shape[2] != k.shape[2],
            )
        return o.transpose(1, 2)

    return attention


def _scale(scale: float | None) -> float | None:
    return None if scale is None or scale == -1 else float(scale)


def _heads_first(x: Tensor) -> Tensor:
    """`[B, H, T, D]`, and the last dim without strides, which the fused backends refuse."""
    rows = x if x.stride(-1) == 1 else x.clone(memory_format=torch.contiguous_format)
    return rows.transpose(1, 2)


def _mask(
    q: Tensor, k: Tensor, causal: bool, window: int | None, slopes: Tensor | None
) -> Tensor | None:
    """What a query may see, or with slopes what its logits lose; None where it sees all."""
    if not causal and window is None and slopes is None:
        return None
    p = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    j = torch.arange(k.shape[1], device=q.device)[None, :]
    visible = _visible(p, j, causal, window)
    if slopes is None:
        return visible
    lost = slopes.float()[:, None, None] * (p - j).abs()
    return torch.where(visible, -lost, -torch.inf)[None]


def _visible(p: Tensor, j: Tensor, causal: bool, window: int | None) -> Tensor:
    """Whether a query at position p sees key j."""
    visible = j <= p if causal else j == j
    return visible if window is None else visible & ((p - j).abs() < window)


def _nested(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:
    """Sequences of their own lengths as nested tensors, which have to be contiguous."""

    def nested(x: Tensor, bounds: Tensor | None) -> Tensor:
        if bounds is None:
            bounds = x.shape[1] * torch.arange(x.shape[0] + 1, device=x.device)
        return nested_tensor_from_jagged(x.flatten(0, 1).contiguous(), bounds).transpose(1, 2)

    keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    o = scaled_dot_product_attention(
        nested(q, cu_seqlens), nested(k, keys), nested(v, keys), scale=_scale(scale)
    )
    return o.transpose(1, 2).values().view(*q.shape[:3], v.shape[-1])


def _flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """FlexAttention without torch.compile; sequences are packed by a mask."""
    keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    of_query, of_key = _sequence(q, cu_seqlens), _sequence(k, keys)
    # The position of the first query of each sequence among all keys.
    behind = _ends(k, keys) - _ends(q, cu_seqlens)

    def position(i: Tensor) -> Tensor:
        return i + behind[of_query[i]]

    def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        own = of_query[i] == of_key[j]
        return own & _visible(position(i), j, causal, window)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if alibi_slopes is not None:
            s = s - alibi_slopes[h] * (position(i) - j).abs()
        return s

    blocks = create_block_mask(mask, None, None, q.shape[1], k.shape[1], device=q.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        o, more = flex_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            score_mod=score,
            block_mask=blocks,
            scale=_scale(scale),
            enable_gqa=q.shape[2] != k.shape[2],
            return_aux=AuxRequest(lse=return_lse),
        )
    return o.transpose(1, 2), more.lse


def _sequence(x: Tensor, bounds: Tensor | None) -> Tensor:
    """The number of the packed sequence that each token is in."""
    tokens = torch.arange(x.shape[1], device=x.device)
    return (
        torch.zeros_like(tokens)
        if bounds is None
        else torch.bucketize(tokens, bounds[1:], right=True)
    )


def _ends(x: Tensor, bounds: Tensor | None) -> Tensor:
    """One past the last token of each sequence."""
    return torch.tensor([x.shape[1]], device=x.device) if bounds is None else bounds[1:]


def target(device: torch.device) -> Adapter:
    sdpa = (_HEADS_FIRST, _SCALE, _CAUSAL, _MASKS)
    widths = {"V = K": _equal_widths}
    return Adapter(
        {
            "attention": {
                "sdpa": Implementation(_sdpa(), sdpa, tokens=_FLASH_KEYS),
                "sdpa_math": Implementation(_sdpa(SDPBackend.MATH), sdpa),
                "sdpa_flash": Implementation(
                    _sdpa(SDPBackend.FLASH_ATTENTION), sdpa, tokens=_FLASH_KEYS, bounds=widths
                ),
                "sdpa_nested": Implementation(
                    _nested,
                    (_HEADS_FIRST, _SCALE),
                    bounds={"H = G": lambda case: replace(case, dims={**case.dims, "R": 1})},
                ),
                "flex": Implementation(
                    _flex, (_HEADS_FIRST, _SCALE), forward_only=device.type == "cpu"
                ),
            }
        }
    )
