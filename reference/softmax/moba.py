"""Mixture of block attention: each head attends to the blocks whose mean key it likes best."""

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
    q: Tensor, k: Tensor, v: Tensor, *, block_size: int, top_k: int, scale: float
) -> tuple[Tensor, Tensor]:
    T_q, H, T_k, C = *q.shape[1:3], k.shape[1], block_size
    p, j = positions(T_q, k)
    k_h, v_h = for_each_head(k, H), for_each_head(v, H)
    whole = T_k // C
    mean = k_h[:, : whole * C].unflatten(1, (whole, C)).mean(2)
    scores = _of_past_blocks(logits(q, mean, 1.0).detach(), p, T_k, C)
    visible = chosen(top_k_indices(scores, top_k), -(-T_k // C))[..., j[0] // C]
    return attend(logits(q, k_h, scale), visible & (j <= p), v_h)


def _of_past_blocks(scores: Tensor, p: Tensor, keys: int, C: int) -> Tensor:
    """Scores of all blocks: inf for the query's own one, -inf for those after it."""
    b = torch.arange(-(-keys // C), device=scores.device)
    own = p.div(C, rounding_mode="floor")
    scores = torch.nn.functional.pad(scores, (0, len(b) - scores.shape[-1]))
    return torch.where(b < own, scores, torch.where(b == own, math.inf, -math.inf))


def by_rank(
    q: Tensor, k: Tensor, v: Tensor, *, block_size: int, top_k: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Blocks scored by the mean of q · k, ranked by counting, and fetched by their indices."""
    T_q, H, T_k, C = *q.shape[1:3], k.shape[1], block_size
    k, v = for_each_head(k, H), for_each_head(v, H)
    p, _ = positions(T_q, k)
    s = torch.einsum("bihk,bjhk->bhij", q, k)[..., : T_k // C * C].detach()
    scores = s.unflatten(-1, (T_k // C, C)).mean(-1)
    indices = top_k_by_rank(_of_past_blocks(scores, p, T_k, C), top_k).transpose(1, 2)
    return gathered(q, k, v, indices=indices, block_size=C, scale=scale)


@attention_op(definition, by_rank, run=selecting(), outputs=("o", "lse"))
def moba(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    *,
    block_size: int = 512,
    top_k: int = 3,
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Mixture of block attention, by its definition.

        p_i   = i + T_k - T_q                                 position of query i among the keys
        r_ihb = q_ih · mean of k_j                            tokens j of block b, j // C = b
        I_ih  = {p_i // C} and the top blocks b < p_i // C by r_ihb, together top_k
        o, lse = selected_attention(q, k, v, I)

    Query head h reads kv head h // (H / G), and each head has its own selection. Of equal scores
    the lower block wins. Scores are rounded to the dtype of the inputs, where more of them are
    equal: 256 and 257 in bfloat16. Kernels round them to float32. The selection gets no gradient.

    Args:
        block_size: C >= 1, tokens of a block.
        top_k: At least 1, the number of selected blocks. The query's own block counts and is always
            selected: with top_k = 1 it is the only one.

    Raises:
        ValueError: H not G, 2 G, 3 G, ...; a block size or `top_k` below 1.

    Source: Lu et al., arXiv 2502.13189, section 2.2, equations 4 to 6 (gate), and "Causality". The
        scores are not scaled. Ties, and T_q != T_k, are conventions of this project.
    """
