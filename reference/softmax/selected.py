"""Attention to selected blocks: the core of NSA, MoBA, DSA and MSA."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from reference.op import Form
from reference.softmax.masked import attend, for_each_head, logits, positions, selecting
from reference.softmax.run import LseOptions, attention_op


def masked(
    q: Tensor, k: Tensor, v: Tensor, *, indices: Tensor, block_size: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Every query meets every key; a mask hides those of other blocks."""
    T_q, H = q.shape[1:3]
    p, j = positions(T_q, k)
    blocks = torch.arange(-(-k.shape[1] // block_size), device=k.device)
    chosen = (indices[..., None] == blocks).any(-2)  # [B, T_q, G, blocks]
    visible = chosen[..., j[0] // block_size].transpose(1, 2) & (j <= p)
    visible = visible.repeat_interleave(H // k.shape[2], 1)
    return attend(logits(q, for_each_head(k, H), scale), visible, for_each_head(v, H))


def gathered(
    q: Tensor, k: Tensor, v: Tensor, *, indices: Tensor, block_size: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Each query fetches its own blocks, slot by slot, and computes no other logit.

    Sorted slots have equal indices side by side: all but the first of them are dropped.
    """
    (_, T_q, H, _), (T_k, G) = q.shape, k.shape[1:3]
    slots = indices.permute(0, 2, 1, 3).sort(-1).values  # [B, G, T_q, S]
    before = torch.nn.functional.pad(slots[..., :-1], (1, 0), value=-1)
    kept = (slots != before) & (slots >= 0)
    j = slots[..., None] * block_size + torch.arange(block_size, device=q.device)
    p = torch.arange(T_k - T_q, T_k, device=q.device)[:, None, None]
    seen = kept[..., None] & (j <= p) & (j < T_k)
    # One more token at the end, which nobody sees, for what is not seen.
    j = torch.where(seen, j, T_k)
    grouped = q.unflatten(2, (G, H // G)).permute(0, 2, 1, 3, 4)  # [B, G, T_q, R, K]

    def fetch(x: Tensor, slot: int) -> Tensor:
        """`[B, G, T_q, C, D]`: the rows of one slot."""
        x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 1)).transpose(1, 2)
        rows = j[..., slot, :].flatten(2)[..., None].expand(-1, -1, -1, x.shape[-1])
        return torch.unflatten(x.gather(2, rows), 2, (T_q, block_size))

    of_slots = [
        torch.where(seen[..., m, None, :], scale * (grouped @ fetch(k, m).mT), -math.inf)
        for m in range(slots.shape[-1])
    ]
    s = torch.cat([torch.full_like(grouped[..., :1], -math.inf), *of_slots], -1)
    nothing = (s == -math.inf).all(-1, keepdim=True)
    s = torch.where(nothing, 0.0, s)
    lse = torch.logsumexp(s, -1, keepdim=True)
    weights = torch.where(nothing, 0.0, torch.exp(s - lse))[..., 1:]
    o = weights.new_zeros(*weights.shape[:-1], v.shape[-1])
    for m in range(slots.shape[-1]):
        of_slot = weights[..., m * block_size : (m + 1) * block_size]
        o = o + of_slot @ fetch(v, m).to(s.dtype)
    lse = torch.where(nothing, -math.inf, lse)[..., 0]
    return o.permute(0, 2, 1, 3, 4).flatten(2, 3), lse.transpose(2, 3).flatten(1, 2)


def run(form: Form, sizes: Mapping[str, int], **given: Any) -> tuple[Tensor, Tensor | None]:
    return selecting(queries=("indices",))(partial(_with_indices_inside, form), sizes, **given)


def _with_indices_inside(
    form: Form, *, k: Tensor, indices: Tensor, block_size: int, **rest: Tensor
) -> tuple[Tensor, Tensor]:
    blocks = -(-k.shape[1] // block_size)
    if bool(((indices < -1) | (indices >= blocks)).any()):
        wrong = indices[(indices < -1) | (indices >= blocks)][0].item()
        raise ValueError(
            f"indices: {wrong}, expected -1 to {blocks - 1}: "
            f"{k.shape[1]} keys are {blocks} blocks of {block_size}"
        )
    o, lse = form(k=k, indices=indices, block_size=block_size, **rest)
    return o, lse


@attention_op(masked, gathered, run=run, outputs=("o", "lse"))
def selected_attention(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    indices: Int32[Tensor, "B T_q G M"] | Int64[Tensor, "B T_q G M"],
    *,
    block_size: int = 64,
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Causal softmax attention to the blocks of keys that each query selects.

        p_i  = i + T_k - T_q                                  position of query i among the keys
        A_ig = ∪_m { j : j // C = indices_igm }               block size C; -1 selects no block
        s_ij = scale · q_i · k_j   for j in A_ig, j <= p_i
        lse_i = log Σ_j exp(s_ij)
        o_i  = Σ_j exp(s_ij - lse_i) v_j

    Query head h reads kv head g = h // (H / G) and its selection. A block that is selected twice
    counts once, and the order of the slots does not matter. Blocks after the query are hidden as
    their keys are. With C = 1 a query selects tokens. A row that sees no key gets o = 0, lse =
    -inf, and gradients 0.

    Args:
        indices: Number of a block in its sequence, from 0, in each of M slots; -1 is an empty slot.
            The last block may be shorter than C. They get no gradient.
        block_size: C >= 1, in tokens.

    Raises:
        ValueError: H not G, 2 G, 3 G, ...; an index below -1 or past the last block of its
            sequence; a block size below 1.

    Source: Yuan et al., Native Sparse Attention, arXiv 2502.11089, section 3.3.2 (blocks shared by
        the heads of a group); Lu et al., MoBA, arXiv 2502.13189 (a softmax over all blocks). Empty
        slots, duplicates and T_q != T_k are conventions of this project.
    """
