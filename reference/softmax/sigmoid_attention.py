"""Attention whose weights are sigmoids: keys do not compete."""

import math
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.heads import heads_per_group
from reference.op import Form
from reference.scale import resolve_scale
from reference.softmax.run import (
    Options,
    attention_op,
    check_window,
    queries_and_keys,
    sees,
)


def definition(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, window: int | None,
    bias: float | None,
) -> Tensor:  # fmt: skip
    (T_q, H), (T_k, G) = q.shape[1:3], k.shape[1:3]
    kv_head = torch.arange(H, device=q.device) // (H // G)
    visible = sees(T_q, T_k, causal, window, q.device)
    s = scale * (q.transpose(1, 2) @ k[:, :, kv_head].permute(0, 2, 3, 1))
    n = visible.sum(-1, keepdim=True).clamp(min=1)
    b = -torch.log(n.to(s.dtype)) if bias is None else bias
    weights = torch.where(visible, torch.sigmoid(s + b), 0.0)
    return (weights @ v[:, :, kv_head].transpose(1, 2)).transpose(1, 2)


def pairwise(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, window: int | None,
    bias: float | None,
) -> Tensor:  # fmt: skip
    """One key after another; a sigmoid is a softmax over two logits, the key's and 0:

        sigmoid(x) = exp(x) / (exp(x) + exp(0)) = exp(x - log(exp(x) + exp(0)))

    The keys that a query sees are a range, low <= j < high, and n_i = high - low.
    """
    (B, T_q, H, _), (T_k, G, V) = q.shape, v.shape[1:]
    grouped = q.unflatten(2, (G, H // G))
    p = torch.arange(T_k - T_q, T_k, device=q.device)
    W = T_k + T_q if window is None else window
    low = (p - W + 1).clamp(min=0)
    high = (p + 1 if causal else p + W).clamp(max=T_k)
    b = -torch.log((high - low).clamp(min=1).to(q.dtype)) if bias is None else bias
    zero = q.new_zeros(())
    o = q.new_zeros(B, H, T_q, V)
    for j in range(T_k):
        x = b + scale * torch.einsum("bigrk,bgk->bgri", grouped, k[:, j]).flatten(1, 2)
        weight = torch.exp(x - torch.logaddexp(x, zero))
        weight = torch.where((low <= j) & (j < high), weight, 0.0)
        value = v[:, j].repeat_interleave(H // G, dim=1)
        o = o + weight[..., None] * value[:, :, None]
    return o.transpose(1, 2)


def run(
    form: Form, sizes: Mapping[str, int], *, q: Tensor, k: Tensor, v: Tensor,
    cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, **options: Any,
) -> Tensor:  # fmt: skip
    """Run one form over every sequence of a batch."""
    heads_per_group("q", sizes["H"], sizes["G"], ("k", "v"))
    options["scale"] = resolve_scale(options["scale"], sizes["K"])
    check_window(options["window"])
    bias = options["bias"]
    if bias is not None and not math.isfinite(bias):
        raise ValueError(f"bias: {bias}, expected a finite number or None")
    outputs = [
        form(q[:, i], k[:, j], v[:, j], **options)
        for _, i, j in queries_and_keys(q, k, cu_seqlens, cu_seqlens_k)
    ]
    return torch.cat(outputs, dim=1)


@attention_op(definition, pairwise, run=run, outputs=("o",))
def sigmoid_attention(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    *,
    causal: bool = False,
    window: int | None = None,
    bias: float | None = None,
    **options: Unpack[Options],
) -> Float[Tensor, "B T_q H V"]:
    """Sigmoid attention, by its definition.

        p_i  = i + T_k - T_q                                  position of query i among the keys
        i sees j   if   j <= p_i  (causal)   and   |p_i - j| < W  (window)
        s_ij = scale · q_i · k_j
        o_i  = Σ_j sigmoid(s_ij + b_i) v_j                    over the keys that i sees

    Query head h reads kv head h // (H / G). A row that sees no key gets o = 0 and gradients 0.

    Args:
        causal: Hide the keys after the query, aligned at the bottom right.
        window: W >= 1, the number of keys (tokens) seen, the query's own included; without `causal`
            another W - 1 on the other side.
        bias: b, natural units, added after the scale. None means b_i = -log n_i, n_i the number of
            keys that query i sees, which is the paper's sequence length where nothing is hidden. A
            row then depends on the keys that it sees alone, and decoding token by token agrees with
            one call. Under a mask the paper still takes the sequence length: pass -log(length).

    Raises:
        ValueError: H not G, 2 G, 3 G, ...; a bias that is NaN or infinite; a window below 1.

    Source: Ramapuram et al., arXiv 2409.04431.
    """
