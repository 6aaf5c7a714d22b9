"""Softmax attention, with everything that is commonly done to its logits."""

import math
from typing import Unpack

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from reference.softmax.masked import finite_maximum, softmax_with_sink
from reference.softmax.run import LseOptions, attention_op, run, sees
from reference.softmax.structure import Structure, intervals, pairs


def definition(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, window: int | None,
    softcap: float | None, sink: Tensor | None, slope: Tensor | None, g: Tensor | None,
    bias: Tensor | None, mask: Tensor | None, structure: Structure,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    (B, T_q, H, _), (T_k, G) = q.shape, k.shape[1:3]
    kv_head = torch.arange(H, device=q.device) // (H // G)
    i = torch.arange(T_q, device=q.device)[:, None]
    j = torch.arange(T_k, device=q.device)[None, :]
    p = i + T_k - T_q

    # Matrix products, as einsum multiplies element by element where a size is 1, and the error
    # budgets tell the two apart.
    s = scale * (q.transpose(1, 2) @ k[:, :, kv_head].permute(0, 2, 3, 1))
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if slope is not None:
        s = s - slope[:, None, None] * (p - j).abs()
    if g is not None:
        s = s + _decay_between(g, p)
    if bias is not None:
        s = s + bias
    visible = sees(T_q, T_k, causal, window, q.device)
    if mask is not None:
        visible = visible & mask
    for rule in pairs(structure, i, j, p):
        visible = visible & rule
    no_sink = s.new_full((B, H, T_q, 1), -math.inf)
    s = torch.where(visible, s, -math.inf)
    s = torch.cat([s, no_sink if sink is None else sink.view(1, H, 1, 1).expand_as(no_sink)], -1)
    o, lse = softmax_with_sink(s, v[:, :, kv_head].transpose(1, 2))
    return o.transpose(1, 2), lse


def _decay_between(
    g: Float[Tensor, "B T_k H"], p: Int64[Tensor, "T_q 1"]
) -> Float[Tensor, "B H T_q T_k"]:
    """Σ_{j < t <= p_i} g_t of each pair, summed by itself.

    A difference of two prefix sums would lose the small terms behind a large one, and be NaN behind
    an infinite one.
    """
    t = torch.arange(g.shape[1], device=g.device)
    terms = torch.where(t <= p, g.transpose(1, 2)[:, :, None], 0.0)
    later = torch.nn.functional.pad(terms[..., 1:], (0, 1))
    return later.flip(-1).cumsum(-1).flip(-1)


def online(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, window: int | None,
    softcap: float | None, sink: Tensor | None, slope: Tensor | None, g: Tensor | None,
    bias: Tensor | None, mask: Tensor | None, structure: Structure,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One key after another, without a row of weights in memory.

        m' = max(m, s_j)
        l' = exp(m - m') l + exp(s_j - m')
        o' = exp(m - m') o + exp(s_j - m') v_j

    starting from m = sink, l = 1, o = 0 (without a sink m = -inf, l = 0), and in the end o / l and
    lse = m + log l. Keys come last to first: the decay between key j and the query is then a
    running sum, too.

    Source: Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867,
        algorithm 3; Rabe and Staats, arXiv 2112.05682 (with values).
    """
    (B, T_q, H, _), (T_k, G, V) = q.shape, v.shape[1:]
    grouped = q.unflatten(2, (G, H // G))
    p = torch.arange(T_k - T_q, T_k, device=q.device)
    start = q.new_full((H,), -math.inf) if sink is None else sink
    logit = start[:, None].expand(B, H, T_q)
    # The maximum only shifts the exponents, and cancels; no gradient needs to pass through it.
    m = logit.detach()
    l = torch.exp(logit - finite_maximum(m))
    o = l[..., None] * l.new_zeros(V)
    decay = torch.zeros_like(l)
    rules = list(intervals(structure, T_q, T_k, q.device))
    for j in reversed(range(T_k)):
        s = scale * torch.einsum("bigrk,bgk->bgri", grouped, k[:, j]).flatten(1, 2)
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if slope is not None:
            s = s - slope[:, None] * (p - j).abs()
        if g is not None:
            s = s + decay
            decay = decay + torch.where(j <= p, g[:, j, :, None], 0.0)
        if bias is not None:
            s = s + bias.expand(-1, -1, -1, T_k)[..., j]
        first = p - j if causal else (p - j).abs()
        visible = (first >= 0) & (first < (T_k + T_q if window is None else window))
        for code, low, high in rules:
            visible = visible & ((low[:, j, None] <= code) & (code < high[:, j, None]))[:, None]
        if "blocks" in structure:
            size = structure["block_size"]
            column = structure["blocks"][:, :, j // size]
            visible = visible & column.repeat_interleave(size, 1)[:, :T_q]
        if mask is not None:
            visible = visible & mask.expand(-1, -1, -1, T_k)[..., j]
        logit = torch.where(visible, s, -math.inf)

        new_m = torch.maximum(m, logit.detach())
        shrink = torch.exp(m - finite_maximum(new_m))
        weight = torch.exp(logit - finite_maximum(new_m))
        l = shrink * l + weight
        value = v[:, j].repeat_interleave(H // G, dim=1)
        o = shrink[..., None] * o + weight[..., None] * value[:, :, None]
        m = new_m

    # A row that sees no key has m = -inf, which is its lse, and o = 0.
    l = torch.where(l == 0, 1.0, l)
    return (o / l[..., None]).transpose(1, 2), m + torch.log(l)


@attention_op(definition, online, run=run, outputs=("o", "lse"))
def attention(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    alibi_slopes: Float[Tensor, "H"] | None = None,
    g: Float[Tensor, "B T_k H"] | None = None,
    bias: Float[Tensor, "#B #H #T_q #T_k"] | None = None,
    mask: Bool[Tensor, "#B #H #T_q #T_k"] | None = None,
    structure: Structure | None = None,
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Softmax attention, by its definition.

        p_i  = i + T_k - T_q                                  position of query i among the keys
        s_ij = scale · q_i · k_j
        s_ij = c tanh(s_ij / c)                               softcap c
        s_ij = s_ij - slope · |p_i - j|                       ALiBi
        s_ij = s_ij + Σ_{j < t <= p_i} g_t                    forgetting gate
        s_ij = s_ij + bias_ij
        s_ij = -inf   unless   j <= p_i  (causal)   and   |p_i - j| < W  (window)
                      and   mask_ij   and   all rules of `structure`
        lse_i = log (exp(sink) + Σ_j exp(s_ij))               without a sink exp(sink) is 0
        o_i  = Σ_j exp(s_ij - lse_i) v_j

    Query head h reads kv head h // (H / G). A row that sees no key gets o = 0, lse = -inf (lse =
    sink if there is one), and gradients 0.

    Args:
        causal: Hide the keys after the query, aligned at the bottom right.
        window: W >= 1, the number of keys (tokens) seen, the query's own included; without `causal`
            another W - 1 on the other side.
        softcap: c > 0, the bound that logits are squashed to, before any bias.
        sink: Natural units: one more logit per head that has no value.
        alibi_slopes: Logits fall by the slope per token of distance. A constant: it gets no
            gradient.
        g: Natural logarithm of the decay at each key, meant to be <= 0, -inf included. Not scaled.
            Needs `causal`.
        bias: Natural units, -inf included, which hides a pair. `#B` is B or 1, and so on: a size of
            1 stands for all, and its gradient is their sum. Of packed sequences T_q and T_k are all
            tokens, and what is between two sequences is not read.
        mask: False hides a pair; sizes of 1 as for `bias`.
        structure: Rules of positions that hide pairs: documents, a prefix, chunks, blocks, a
            dilation, a tree, a table of blocks. See `reference.softmax.structure.Structure`.

    Raises:
        ValueError: H not G, 2 G, 3 G, ...; a window below 1; a softcap that is not positive and
            normal in float32; `g` without `causal`; an entry of `structure` that is unknown or not
            as it says.

    Source: Vaswani et al., arXiv 1706.03762 (softmax attention); Gemma 2, arXiv 2408.00118 (soft
        capping); Press et al., arXiv 2108.12409 (ALiBi); Lin et al., Forgetting Transformer,
        arXiv 2503.02130 (g); Xiao et al., arXiv 2309.17453, and gpt-oss, arXiv 2508.10925 (sinks);
        Ainslie et al., arXiv 2305.13245 (grouped heads); Raffel et al., arXiv 1910.10683 (bias,
        prefix); Beltagy et al., arXiv 2004.05150 (dilation); Zaheer et al., arXiv 2007.14062
        (blocks); Miao et al., SpecInfer, arXiv 2305.09781 (tree).
    """
