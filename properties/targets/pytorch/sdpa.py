"""`scaled_dot_product_attention`, by backend."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from properties.catalogue.op import Function
from properties.targets.adapter import Implementation
from properties.targets.bounds import Bound, equal_widths
from properties.targets.pytorch.conventions import (
    HEADS_FIRST,
    SCALE,
    added_in_dtype,
    at_least_2_tokens,
    check_sizes,
    dense_rows,
    multiples_of_8,
    multiples_of_8_to_128,
    scale_of,
    square_if_causal,
    ungrouped,
    with_dense_gradient,
)
from properties.targets.pytorch.masks import boundaries, check_mask, positions, seen
from reference.softmax.structure import Structure

_TOP_LEFT = "is_causal aligns at the top left; where T_q != T_k the mask is written out"
_MASKS = "window and rules are boolean masks, ALiBi a float32 one that is added"
_MASKED = (HEADS_FIRST, SCALE, _TOP_LEFT, _MASKS)
_ATOMIC = "its backward adds with atomics, as documented"
# Keys per block of the CPU's flash kernel.
_KEYS = 512


def masked(*backends: SDPBackend) -> Function:
    """Attention with a mask, on one of these backends."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False,
        window: int | None = None, alibi_slopes: Tensor | None = None,
        bias: Tensor | None = None, mask: Tensor | None = None, structure: Structure | None = None,
    ) -> Tensor:  # fmt: skip
        check_sizes(q, k, v)
        check_mask(
            q, k, window=window, slopes=alibi_slopes, bias=bias, mask=mask, structure=structure
        )
        alone = all(x is None for x in (window, alibi_slopes, bias, mask, structure))
        top_left = causal and alone and q.shape[1] == k.shape[1]
        attn_mask = (
            None if top_left else _mask(q, k, causal, window, alibi_slopes, bias, mask, structure)
        )
        if attn_mask is not None and attn_mask.is_cuda:
            attn_mask = dense_rows(attn_mask)
        with _chosen(backends):
            o = scaled_dot_product_attention(
                dense_rows(q).transpose(1, 2),
                dense_rows(k).transpose(1, 2),
                dense_rows(v).transpose(1, 2),
                attn_mask=attn_mask,
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
    q: Tensor,
    k: Tensor,
    causal: bool,
    window: int | None,
    slopes: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    structure: Structure | None,
) -> Tensor | None:
    """The boolean mask, or what is added to logits; None if a query sees every key."""
    alone = not causal and slopes is None and window is None and structure is None
    if alone and (bias is None or mask is None):
        return mask if bias is None else bias
    sizes = (len(q), q.shape[2], q.shape[1], k.shape[1])
    tokens = (torch.arange(n, device=q.device) for n in sizes)
    b, h, i, j = (x.view(*[1] * axis, -1, *[1] * (3 - axis)) for axis, x in enumerate(tokens))
    visible = seen(q, k, causal=causal, window=window, mask=mask, structure=structure)(b, h, i, j)
    if bias is None and slopes is None:
        return visible
    added = torch.zeros((), device=q.device) if bias is None else bias
    if slopes is not None:
        p = positions(*boundaries(q, k))(i)
        added = added - slopes.float()[h] * (p - j).abs()
    return torch.where(visible, added, -torch.inf)


def on_cpu() -> dict[str, Implementation]:
    return {
        "sdpa": Implementation(masked(), _MASKED, tokens=_KEYS),
        "sdpa_math": Implementation(masked(SDPBackend.MATH), _MASKED),
        "sdpa_flash": Implementation(
            masked(SDPBackend.FLASH_ATTENTION),
            _MASKED,
            tokens=_KEYS,
            bounds={"V = K": equal_widths},
            # This backend refuses a mask that needs a gradient.
            constants=("bias",),
        ),
    }


def on_cuda() -> dict[str, Implementation]:
    unstated = {"determinism": _ATOMIC}
    uncut = {**unstated, "splitting": "it has no kernel for what some cuts leave"}
    added: dict[str, Bound] = {"ALiBi and biases in the dtype of q": added_in_dtype}
    return {
        "sdpa": Implementation(masked(), _MASKED, bounds=added, unstated=unstated),
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
            bounds={"H = G": ungrouped, "head dims in multiples of 8": multiples_of_8, **added},
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
                **added,
            },
            unstated=uncut,
        ),
    }
