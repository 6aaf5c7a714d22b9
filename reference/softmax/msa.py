"""MiniMax sparse attention: blocks selected by the best token in them, for each group of heads."""

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.softmax.masked import attend, for_each_head, logits, positions, selecting
from reference.softmax.run import LseOptions, attention_op
from reference.softmax.select import chosen, top_k_by_rank, top_k_indices
from reference.softmax.selected import gathered


def definition(
    q: Tensor, k: Tensor, v: Tensor, *, q_index: Tensor, k_index: Tensor, block_size: int,
    top_k: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    (T_q, H), (T_k, G), C = q.shape[1:3], k.shape[1:3], block_size
    p, j = positions(T_q, k)
    blocks = -(-T_k // C)
    tokens = q_index.transpose(1, 2) @ k_index[:, None].mT
    tokens = torch.where(j <= p, tokens, -math.inf)
    tokens = torch.nn.functional.pad(tokens, (0, blocks * C - T_k), value=-math.inf)
    scores = tokens.unflatten(-1, (blocks, C)).amax(-1)
    own = torch.arange(blocks, device=q.device) == p.div(C, rounding_mode="floor")
    indices = top_k_indices(torch.where(own, math.inf, scores), top_k)
    visible = chosen(indices, blocks)[..., j[0] // C] & (j <= p)
    visible = visible.repeat_interleave(H // G, 1)
    return attend(logits(q, for_each_head(k, H), scale), visible, for_each_head(v, H))


def by_rank(
    q: Tensor, k: Tensor, v: Tensor, *, q_index: Tensor, k_index: Tensor, block_size: int,
    top_k: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A running maximum over the tokens of a block; blocks ranked by counting, then fetched."""
    T_q, T_k, C = q.shape[1], k.shape[1], block_size
    p = torch.arange(T_k - T_q, T_k, device=q.device)[:, None]
    start = torch.arange(0, T_k, C, device=q.device)
    scores = q_index.new_full((), -math.inf)
    for c in range(C):
        j = start + c
        key = k_index[:, j.clamp(max=T_k - 1)]
        score = torch.einsum("bigd,bnd->bign", q_index, key)
        seen = ((j <= p) & (j < T_k))[:, None]
        scores = torch.maximum(scores, torch.where(seen, score, -math.inf))
    own = ((start <= p) & (p < start + C))[:, None]
    indices = top_k_by_rank(torch.where(own, math.inf, scores), top_k)
    return gathered(q, k, v, indices=indices, block_size=C, scale=scale)


@attention_op(
    definition, by_rank, run=selecting(indexer=("q_index", "k_index")), outputs=("o", "lse")
)
def msa(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    q_index: Float[Tensor, "B T_q G D"],
    k_index: Float[Tensor, "B T_k D"],
    *,
    block_size: int = 128,
    top_k: int = 16,
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """MiniMax sparse attention, by its definition.

        p_i   = i + T_k - T_q                                 position of query i among the keys
        r_igb = max over j of q_index_ig · k_index_j          j // C = b,  j <= p_i
        I_ig  = {p_i // C} and the top blocks b < p_i // C by r_igb, together top_k
        o, lse = selected_attention(q, k, v, I)

    Query head h reads kv head g = h // (H / G), and the heads of a group share a selection. Of
    equal scores the lower block wins, and -0.0 equals 0.0. Scores are rounded to the dtype
    of the inputs, where more of them are equal: 256 and 257 in bfloat16. Kernels round them to
    float32.

    Args:
        q_index: Queries of the indexer, one for each group, already rotated. A constant: it gets no
            gradient.
        k_index: Keys of the indexer, shared by the groups, already rotated. A constant.
        block_size: C >= 1, tokens of a block.
        top_k: At least 1, the number of selected blocks. The query's own block counts and is always
            selected.

    Raises:
        ValueError: H not G, 2 G, 3 G, ...; a block size or `top_k` below 1.

    Source: Lai et al., MiniMax Sparse Attention, arXiv 2606.13392 (index branch: one query head for
        each group and one key head; scores of tokens, max-pooled by block; the local block always
        selected). A positive scale of the scores would change nothing, so they have none. Its loss
        for the index branch is no part of the op. Ties, and T_q != T_k, are conventions of this
        project.
    """
