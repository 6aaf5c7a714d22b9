"""FlexAttention: packing, window, softcap and ALiBi as functions of positions."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from properties.catalogue.op import Function
from properties.targets.adapter import Implementation
from properties.targets.pytorch.conventions import (
    HEADS_FIRST,
    SCALE,
    at_least_16,
    check_mask,
    check_sizes,
    scale_of,
    visible,
)

_CONVENTIONS = (
    HEADS_FIRST,
    SCALE,
    "sequences are packed by a mask",
    "softcap is captured as a tensor, as a number that changes from call to call fails to compile",
)


def _with(kernel: Callable[..., Any]) -> Function:
    """The op with `flex_attention`, compiled or not."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False,
        window: int | None = None, softcap: float | None = None, alibi_slopes: Tensor | None = None,
        cu_seqlens: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
        return_lse: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        check_sizes(q, k, v)
        if cu_seqlens_k is not None and (
            cu_seqlens is None or len(cu_seqlens) != len(cu_seqlens_k)
        ):
            raise ValueError("cu_seqlens_k: given, expected as many sequences as cu_seqlens has")
        bounds = (cu_seqlens, cu_seqlens if cu_seqlens_k is None else cu_seqlens_k)
        check_mask(q, k, *bounds, window=window, slopes=alibi_slopes)
        if softcap is not None and not softcap > 0:
            raise ValueError(f"softcap: {softcap!r}, expected None or a positive number")
        cap = None if softcap is None else torch.tensor(softcap, device=q.device)
        # Their products with distances are not to be rounded to 16 bits.
        slopes = None if alibi_slopes is None else alibi_slopes.float()
        keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
        of_query, of_key = _sequence(q, cu_seqlens), _sequence(k, keys)
        # Offset from a query to its key of the same position, with last tokens aligned.
        behind = _ends(k, keys) - _ends(q, cu_seqlens)

        def position(i: Tensor) -> Tensor:
            return i + behind[of_query[i]]

        def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            own = of_query[i] == of_key[j]
            return own & visible(position(i), j, causal, window)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if cap is not None:
                s = cap * torch.tanh(s / cap)
            if slopes is not None:
                s = s - slopes[h] * (position(i) - j).abs()
            return s

        blocks = create_block_mask(mask, None, None, q.shape[1], k.shape[1], device=q.device)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
            o, more = kernel(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                score_mod=score,
                block_mask=blocks,
                scale=scale_of(scale),
                enable_gqa=q.shape[2] != k.shape[2],
                return_aux=AuxRequest(lse=return_lse),
            )
        return o.transpose(1, 2), more.lse

    return attention


def _sequence(x: Tensor, bounds: Tensor | None) -> Tensor:
    """The index of each token's packed sequence."""
    tokens = torch.arange(x.shape[1], device=x.device)
    if bounds is None:
        return torch.zeros_like(tokens)
    return torch.bucketize(tokens, bounds[1:], right=True)


def _ends(x: Tensor, bounds: Tensor | None) -> Tensor:
    """One past the last token of each sequence."""
    return torch.tensor([x.shape[1]], device=x.device) if bounds is None else bounds[1:]


def on_cpu() -> dict[str, Implementation]:
    return {"flex": Implementation(_with(flex_attention), _CONVENTIONS, forward_only=True)}


def on_cuda() -> dict[str, Implementation]:
    compiled = torch.compile(flex_attention, dynamic=True)
    return {
        "flex": Implementation(_with(flex_attention), _CONVENTIONS),
        "flex_compiled": Implementation(
            _with(compiled),
            _CONVENTIONS,
            tokens=128,
            bounds={"head dims from 16 on": at_least_16},
        ),
    }
