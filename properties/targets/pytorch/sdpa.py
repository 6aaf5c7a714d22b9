"""`scaled_dot_product_attention`, by backend."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from properties.catalogue.op import Function
from properties.targets.adapter import Implementation
from properties.targets.bounds import equal_widths
from properties.targets.pytorch.conventions import (
    HEADS_FIRST,
    SCALE,
    at_least_2_tokens,
    check_mask,
    check_sizes,
    dense_rows,
    float32_slopes,
    multiples_of_8,
    multiples_of_8_to_128,
    scale_of,
    square_if_causal,
    ungrouped,
    visible,
    with_dense_gradient,
)

_TOP_LEFT = "is_causal aligns at the top left; where T_q != T_k the mask is written out"
_MASKS = "window and ALiBi are masks, ALiBi a float32 one"
_MASKED = (HEADS_FIRST, SCALE, _TOP_LEFT, _MASKS)
_ATOMIC = "its backward adds with atomics, as documented"
# Keys per block of the CPU's flash kernel.
_KEYS = 512


def masked(*backends: SDPBackend) -> Function:
    """Attention with a mask, on one of these backends."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False,
        window: int | None = None, alibi_slopes: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        check_sizes(q, k, v)
        check_mask(q, k, window=window, slopes=alibi_slopes)
        square = q.shape[1] == k.shape[1]
        top_left = causal and square and window is None and alibi_slopes is None
        mask = None if top_left else _mask(q, k, causal, window, alibi_slopes)
        with _chosen(backends):
            o = scaled_dot_product_attention(
                dense_rows(q).transpose(1, 2),
                dense_rows(k).transpose(1, 2),
                dense_rows(v).transpose(1, 2),
                attn_mask=mask,
                is_causal=top_left,
                scale=scale_of(scale),
                enable_gqa=q.shape[2] != k.shape[2],
            )
        return with_dense_gradient(o.transpose(1, 2))

    return attention


def maskless(*backends: SDPBackend) -> Function:
    """Attention on a backend that takes no mask."""
    full = masked(*backends)

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
    ) -> Tensor:
        o = full(q, k, v, scale=scale, causal=causal)
        assert isinstance(o, Tensor)
        return o

    return attention


def _chosen(backends: tuple[SDPBackend, ...]) -> AbstractContextManager[None]:
    return sdpa_kernel(list(backends)) if backends else nullcontext()


def _mask(
    q: Tensor, k: Tensor, causal: bool, window: int | None, slopes: Tensor | None
) -> Tensor | None:
    """The boolean mask, or with slopes the bias; None if a query sees every key."""
    if not causal and window is None and slopes is None:
        return None
    p = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    j = torch.arange(k.shape[1], device=q.device)[None, :]
    seen = visible(p, j, causal, window)
    if slopes is None:
        return seen
    lost = slopes.float()[:, None, None] * (p - j).abs()
    return torch.where(seen, -lost, -torch.inf)[None]


def on_cpu() -> dict[str, Implementation]:
    return {
        "sdpa": Implementation(masked(), _MASKED, tokens=_KEYS),
        "sdpa_math": Implementation(masked(SDPBackend.MATH), _MASKED),
        "sdpa_flash": Implementation(
            masked(SDPBackend.FLASH_ATTENTION),
            _MASKED,
            tokens=_KEYS,
            bounds={"V = K": equal_widths},
        ),
    }


def on_cuda() -> dict[str, Implementation]:
    unstated = {"determinism": _ATOMIC}
    uncut = {**unstated, "splitting": "it has no kernel for what some cuts leave"}
    slopes = {"ALiBi in float32": float32_slopes}
    return {
        "sdpa": Implementation(masked(), _MASKED, bounds=slopes, unstated=unstated),
        "sdpa_math": Implementation(masked(SDPBackend.MATH), _MASKED),
        "sdpa_flash": Implementation(
            maskless(SDPBackend.FLASH_ATTENTION),
            (HEADS_FIRST, SCALE),
            dtypes=("bfloat16", "float16"),
            bounds={"V = K": equal_widths, "T_q = T_k where causal": square_if_causal},
            unstated=uncut,
        ),
        "sdpa_efficient": Implementation(
            masked(SDPBackend.EFFICIENT_ATTENTION),
            _MASKED,
            bounds={"H = G": ungrouped, "head dims in multiples of 8": multiples_of_8, **slopes},
            unstated=uncut,
        ),
        "sdpa_cudnn": Implementation(
            masked(SDPBackend.CUDNN_ATTENTION),
            _MASKED,
            dtypes=("bfloat16", "float16"),
            bounds={
                "V = K": equal_widths,
                "head dims in multiples of 8 to 128": multiples_of_8_to_128,
                "two tokens or more": at_least_2_tokens,
                **slopes,
            },
            unstated=uncut,
        ),
    }
