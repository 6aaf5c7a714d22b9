"""DeepSeek sparse attention: an indexer selects the tokens that each query attends to."""

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
    q: Tensor, k: Tensor, v: Tensor, *, q_index: Tensor, k_index: Tensor, w: Tensor, top_k: int,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    H = q.shape[2]
    p, j = positions(q.shape[1], k)
    products = torch.relu(q_index.transpose(1, 2) @ k_index[:, None].mT)
    scores = (w.transpose(1, 2)[..., None] * products).sum(1)
    indices = top_k_indices(torch.where(j <= p, scores, -math.inf), top_k)
    visible = chosen(indices, k.shape[1])[:, None]
    return attend(logits(q, for_each_head(k, H), scale), visible, for_each_head(v, H))


def by_rank(
    q: Tensor, k: Tensor, v: Tensor, *, q_index: Tensor, k_index: Tensor, w: Tensor, top_k: int,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One indexer head after another; tokens ranked by counting, and fetched by their indices."""
    p, j = positions(q.shape[1], k)
    scores = torch.where(j <= p, k_index.new_zeros(()), -math.inf)
    scores = scores.expand(q.shape[0], -1, -1)
    for h in range(w.shape[-1]):
        product = torch.einsum("bid,bjd->bij", q_index[:, :, h], k_index)
        scores = scores + w[:, :, h, None] * torch.where(product > 0, product, 0.0)
    indices = top_k_by_rank(scores, top_k)[:, :, None].expand(-1, -1, k.shape[2], -1)
    return gathered(q, k, v, indices=indices, block_size=1, scale=scale)


@attention_op(
    definition,
    by_rank,
    run=selecting(indexer=("q_index", "k_index"), weights="w"),
    outputs=("o", "lse"),
)
def dsa(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    q_index: Float[Tensor, "B T_q I D"],
    k_index: Float[Tensor, "B T_k D"],
    w: Float[Tensor, "B T_q I"],
    *,
    top_k: int = 2048,
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """DeepSeek sparse attention, by its definition.

        p_i  = i + T_k - T_q                                  position of query i among the keys
        r_ij = Σ_h w_ih relu(q_index_ih · k_index_j)          j <= p_i, the indexer's I heads
        A_i  = the top_k tokens j by r_ij                     all of them if there are fewer
        o, lse = selected_attention(q, k, v, A) with blocks of one token

    All heads share a selection; query head h reads kv head h // (H / G). Of equal scores the lower
    token wins, and -0.0 equals 0.0: relu makes exact ties common. Scores are rounded to the
    dtype of the inputs, where more of them are equal: 256 and 257 in bfloat16. Kernels round them
    to float32.

    Args:
        q_index: Queries of the indexer, already rotated. A constant: it gets no gradient.
        k_index: Keys of the indexer, shared by its heads, already rotated. A constant.
        w: Weight of each head of the indexer, any scale included. A constant.
        top_k: At least 1, in tokens.

    Raises:
        ValueError: H not G, 2 G, 3 G, ...; `top_k` below 1.

    Source: DeepSeek-V3.2, arXiv 2512.02556, section 2.1, equations 1 (indexer) and 2 (selection).
        The paper attends in the MQA form of MLA, which is G = 1 here. It trains the indexer by a
        loss of its own, so the op gives it no gradient. Ties, and T_q != T_k, are conventions of
        this project.
    """
