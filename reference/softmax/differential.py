"""Differential attention: the difference of two softmax attentions to the same values."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.heads import heads_per_group
from reference.op import Form
from reference.softmax.attention import attention
from reference.softmax.run import Options, attention_op


def definition(
    q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor, **options: object
) -> Tensor:
    first, _ = attention(q1, k1, v, **options)  # type: ignore[arg-type]
    second, _ = attention(q2, k2, v, **options)  # type: ignore[arg-type]
    return first - lam[:, None] * second


def stacked(
    q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor, **options: object
) -> Tensor:
    """Both as one attention of twice as many heads, the values of the second times -λ.

    Query heads 2h and 2h+1 are those of head h, and have kv heads of their own.
    """
    H, G = q1.shape[2], k1.shape[2]
    rows = H // G
    q = torch.stack([q1, q2], 3).flatten(2, 3)
    k = torch.stack([k1, k2], 3).repeat_interleave(rows, 2).flatten(2, 3)
    each = v.repeat_interleave(rows, 2)
    values = torch.stack([each, -lam[:, None] * each], 3).flatten(2, 3)
    o, _ = attention.second_form(q, k, values, **options)  # type: ignore[arg-type]
    pairs: Tensor = o.unflatten(2, (H, 2))
    return pairs.sum(3)


def _run(
    form: Form, sizes: dict[str, int], q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor,
    lam: Tensor, **options: object,
) -> Tensor:  # fmt: skip
    heads_per_group("q1", sizes["H"], sizes["G"], ("k1, k2", "v"))
    dtype = torch.promote_types(q1.dtype, lam.dtype)
    tensors = (x.to(dtype) for x in (q1, k1, q2, k2, v, lam))
    o: Tensor = form(*tensors, **options)
    return o.to(q1.dtype)


@attention_op(
    definition, stacked, run=_run, same_dtype=("q1", "k1", "q2", "k2", "v"), outputs=("o",)
)
def differential_attention(
    q1: Float[Tensor, "B T_q H K"],
    k1: Float[Tensor, "B T_k G K"],
    q2: Float[Tensor, "B T_q H K"],
    k2: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    lam: Float[Tensor, "H"],
    *,
    causal: bool = False,
    window: int | None = None,
    **options: Unpack[Options],
) -> Float[Tensor, "B T_q H V"]:
    """The difference of two attentions, in which common noise cancels.

        o_i = Σ_j (softmax_j(scale · q1_i · k1_j) - λ softmax_j(scale · q2_i · k2_j)) v_j

    Both are `reference.attention` with the same options. Query head h reads kv head h // (H / G).
    The norm of each head and the factor 1 - λ_init of the paper's layer come after it.

    Args:
        q1: Queries of the first attention.
        k1: Its keys.
        q2: Queries of the second attention.
        k2: Its keys.
        lam: λ of each head.
        causal: Hide the keys after the query, aligned at the bottom right.
        window: W >= 1, the number of keys seen, the query's own included; without `causal` another
            W - 1 on the other side.

    Returns:
        o: In the dtype of q1.

    Raises:
        ValueError: H not G, 2 G, 3 G, ...; a window below 1.

    Source: Ye et al., Differential Transformer, arXiv 2410.05258, equation 1.
    """
