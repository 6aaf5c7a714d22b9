"""FlexAttention: packing, masks, softcap, biases and ALiBi as functions of indices."""

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
    check_sizes,
    scale_of,
)
from properties.targets.pytorch.masks import at, boundaries, check_mask, positions, seen
from reference.softmax.structure import Structure

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
        bias: Tensor | None = None, mask: Tensor | None = None, structure: Structure | None = None,
        cu_seqlens: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
        return_lse: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        check_sizes(q, k, v)
        if cu_seqlens_k is not None and (
            cu_seqlens is None or len(cu_seqlens) != len(cu_seqlens_k)
        ):
            raise ValueError("cu_seqlens_k: given, expected as many sequences as cu_seqlens has")
        bounds = (cu_seqlens, cu_seqlens if cu_seqlens_k is None else cu_seqlens_k)
        check_mask(
            q,
            k,
            *bounds,
            window=window,
            slopes=alibi_slopes,
            bias=bias,
            mask=mask,
            structure=structure,
        )
        if softcap is not None and not softcap > 0:
            raise ValueError(f"softcap: {softcap!r}, expected None or a positive number")
        # A number of NumPy would be float64, and the results with it.
        cap = None if softcap is None else torch.tensor(float(softcap), device=q.device)
        # Their products with distances are not to be rounded to 16 bits.
        slopes = None if alibi_slopes is None else alibi_slopes.float()
        position = positions(*boundaries(q, k, *bounds))
        visible = seen(q, k, *bounds, causal=causal, window=window, mask=mask, structure=structure)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if cap is not None:
                s = cap * torch.tanh(s / cap)
            if bias is not None:
                s = s + at(bias, b, h, i, j)
            if slopes is not None:
                s = s - slopes[h] * (position(i) - j).abs()
            return s

        alike = mask is None and structure is None
        B, H = (None, None) if alike else (len(q), q.shape[2])
        blocks = create_block_mask(visible, B, H, q.shape[1], k.shape[1], device=q.device)
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
