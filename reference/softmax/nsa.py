"""Native sparse attention: compressed, selected and recent keys, mixed by gates."""

import math
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.op import Form
from reference.softmax.masked import attend, for_each_head, logits, positions, selecting
from reference.softmax.run import Options, attention_op
from reference.softmax.select import chosen, top_k_by_rank, top_k_indices
from reference.softmax.selected import gathered

# The smallest normal number of float32. Below it a score counts as 0: of large logits, float64
# still tells weights of 1e-172 and 1e-254 apart.
SMALLEST = 2.0**-126


def definition(
    q: Tensor, k: Tensor, v: Tensor, *, g_cmp: Tensor, g_slc: Tensor, g_swa: Tensor,
    block_size: int, top_k: int, local_blocks: int, window: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    (T_q, H), (T_k, G) = q.shape[1:3], k.shape[1:3]
    C, whole = block_size, T_k // block_size
    p, j = positions(T_q, k)
    k_h, v_h = for_each_head(k, H), for_each_head(v, H)

    k_cmp, v_cmp = (x[:, : whole * C].unflatten(1, (whole, C)).mean(2) for x in (k_h, v_h))
    past = torch.arange(1, whole + 1, device=q.device) * C <= p + 1
    s_cmp = logits(q, k_cmp, scale)
    o_cmp, lse_cmp = attend(s_cmp, past, v_cmp)

    weight = torch.exp(s_cmp - torch.where(lse_cmp == -math.inf, 0.0, lse_cmp)[..., None])
    weight = torch.where(past, weight, 0.0).unflatten(1, (G, H // G)).sum(2).detach()
    weight = torch.where(weight < SMALLEST, 0.0, weight)
    indices = top_k_indices(_with_forced_blocks(weight, p, T_k, C, local_blocks), top_k)
    visible = chosen(indices, -(-T_k // C))[..., j[0] // C] & (j <= p)
    s = logits(q, k_h, scale)
    o_slc, lse_slc = attend(s, visible.repeat_interleave(H // G, 1), v_h)

    o_swa, _ = attend(s, (j <= p) & (p - j < window), v_h)
    o = g_cmp[..., None] * o_cmp + g_slc[..., None] * o_slc + g_swa[..., None] * o_swa
    return o, lse_slc


def _with_forced_blocks(weight: Tensor, p: Tensor, keys: int, C: int, local: int) -> Tensor:
    """Scores of all blocks: inf for the first and the local ones, -inf for those after the query.

    Args:
        weight: `[B, G, T_q, whole blocks]`.
        p: `[T_q, 1]`, positions of the queries.
    """
    b = torch.arange(-(-keys // C), device=weight.device)
    scores = torch.nn.functional.pad(weight, (0, len(b) - weight.shape[-1]))
    own = p.div(C, rounding_mode="floor")
    scores = torch.where((b == 0) | (b > own - local), math.inf, scores)
    return torch.where(b * C <= p, scores, -math.inf)


def by_query(
    q: Tensor, k: Tensor, v: Tensor, *, g_cmp: Tensor, g_slc: Tensor, g_swa: Tensor,
    block_size: int, top_k: int, local_blocks: int, window: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One query after another, over the keys that it has.

    The mean of a block is never formed: q · mean(k) is the mean of q · k, and p · mean(v) gives a
    C-th of p to each token. Blocks are ranked by counting and fetched by index.
    """
    (B, T_q, H, _), (T_k, G, V) = q.shape, v.shape[1:]
    C, R = block_size, H // G
    o, lse = [q.new_zeros(B, 0, H, V)], [q.new_zeros(B, H, 0)]
    for i in range(T_q):
        p = i + T_k - T_q
        seen = max(p + 1, 0)
        whole, own = seen // C, p // C
        q_i, k_i, v_i = q[:, i], k[:, :seen], v[:, :seen]
        s = scale * torch.einsum("bgrk,bjgk->bgrj", q_i.unflatten(1, (G, R)), k_i)
        recent, v_swa = torch.softmax(s[..., -window:], -1), v_i[:, -window:].to(s.dtype)
        o_swa = torch.einsum("bgrj,bjgv->bgrv", recent, v_swa).flatten(1, 2)
        s = s[..., : whole * C].unflatten(-1, (whole, C)).mean(-1)
        weight = torch.softmax(s, -1)
        scored = weight.sum(2).detach()
        scored = scored * (scored >= SMALLEST)
        each = (weight / C).repeat_interleave(C, -1)
        o_cmp = torch.einsum("bgrj,bjgv->bgrv", each, v_i[:, : whole * C].to(s.dtype)).flatten(1, 2)

        forced = [b == 0 or own - local_blocks < b for b in range(-(-seen // C))]
        scores = [
            s.new_full((B, G), math.inf) if forced[b] else scored[..., b]
            for b in range(len(forced))
        ]
        indices = top_k_by_rank(torch.stack([s.new_zeros(B, G), *scores], -1)[..., 1:], top_k)
        one = q_i[:, None]
        o_slc, lse_slc = gathered(
            one, k_i, v_i, indices=indices[:, None], block_size=C, scale=scale
        )
        gates = torch.stack([g[:, i] for g in (g_cmp, g_slc, g_swa)], -1)
        o_i = torch.stack([o_cmp, o_slc[:, 0], o_swa], -2)
        o.append((gates[..., None] * o_i).sum(-2)[:, None])
        lse.append(lse_slc)
    return torch.cat(o, 1), torch.cat(lse, -1)


def run(
    form: Form, sizes: Mapping[str, int], *, top_k: int, local_blocks: int, **given: Any
) -> Tensor:
    if top_k < 1 + local_blocks:
        raise ValueError(
            f"top_k: {top_k}, expected at least {1 + local_blocks}: "
            f"the first block and local_blocks={local_blocks} are always selected"
        )
    selected = selecting(queries=("g_cmp", "g_slc", "g_swa"))
    o, _ = selected(form, sizes, top_k=top_k, local_blocks=local_blocks, return_lse=False, **given)
    return o


@attention_op(definition, by_query, run=run, outputs=("o",))
def nsa(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    g_cmp: Float[Tensor, "B T_q H"],
    g_slc: Float[Tensor, "B T_q H"],
    g_swa: Float[Tensor, "B T_q H"],
    *,
    block_size: int = 64,
    top_k: int = 16,
    local_blocks: int = 2,
    window: int = 512,
    **options: Unpack[Options],
) -> Float[Tensor, "B T_q H V"]:
    """Native sparse attention, by its definition.

        p_i    = i + T_k - T_q                                position of query i among the keys
        kc_b   = mean of k_j,  vc_b = mean of v_j             tokens j of block b, j // C = b
        P_ihb  = softmax_b(scale · q_ih · kc_b)               blocks b with (b + 1) C <= p_i + 1
        F_ig   = {0} ∪ {b : p_i // C - L < b <= p_i // C}     the first and L local blocks
        I_ig   = F_ig and the top blocks by Σ_{h in g} P_ihb, together top_k
        o_ih   = g_cmp Σ_b P_ihb vc_b + g_slc selected_attention(I_ig) + g_swa windowed attention

    Query head h reads kv head g = h // (H / G), and the heads of a group share a selection. Of
    equal scores the lower block wins. Scores are rounded to the dtype of the inputs, where more
    of them are equal: those of logits 1 and 1 + 2^-8 in bfloat16. Kernels round them to float32.
    Scores below 2^-126 count as 0.
    The selection gets no gradient. A branch that sees no key is 0.

    Args:
        g_cmp: Gate of the compressed branch, of each query and head, after its activation; meant
            to be in [0, 1].
        g_slc: Gate of the selected branch.
        g_swa: Gate of the sliding window.
        block_size: C >= 1, tokens of a block, both of the compression and of the selection.
        top_k: Number of selected blocks, forced ones included: at least 1 + local_blocks.
        local_blocks: L >= 1, the query's own block and those before it that are always selected.
        window: W >= 1, the number of keys of the window, the query's own included.

    Raises:
        ValueError: H not G, 2 G, 3 G, ...; a block size, number of local blocks or window below
            1; `top_k` below 1 + local_blocks.

    Source: Yuan et al., arXiv 2502.11089, section 3.3, equations 5 to 12, with one block length for
        compression and selection (then equation 9 is P itself), no overlap, and the mean in the
        place of the learned compression. The paper gives each branch its own keys and values; here,
        as in flash-linear-attention, they share k and v. Ties, and T_q != T_k, are conventions of
        this project.
    """
