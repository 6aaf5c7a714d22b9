"""Multi-head latent attention: keys and values of all heads from one latent vector a token."""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.op import Form
from reference.scale import resolve_scale
from reference.softmax.masked import attend, each_sequence, logits, positions
from reference.softmax.run import LseOptions, attention_op


def naive(
    q_n: Tensor, q_r: Tensor, c: Tensor, k_r: Tensor, *, w_uk: Tensor, w_uv: Tensor, scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    H = q_n.shape[2]
    latent = c[:, None]
    k_n = (latent @ w_uk.mT).transpose(1, 2)
    v = (latent @ w_uv.mT).transpose(1, 2)
    k = torch.cat([k_n, k_r[:, :, None].expand(-1, -1, H, -1)], -1)
    q = torch.cat([q_n, q_r], -1)
    p, j = positions(q.shape[1], k)
    return attend(logits(q, k, scale), (j <= p) | (not causal), v)


def absorbed(
    q_n: Tensor, q_r: Tensor, c: Tensor, k_r: Tensor, *, w_uk: Tensor, w_uv: Tensor, scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The up-projections move to the query and to the output; one latent head serves all heads.

        q'_ih = w_uk_hᵀ q_n_ih
        s_ijh = scale (q'_ih · c_j + q_r_ih · k_r_j)
        o_ih  = w_uv_h Σ_j softmax_j(s_ijh) c_j

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.2 (w_uk absorbed into the query, w_uv into
        the output).
    """
    H = q_n.shape[2]
    q_c = torch.einsum("bihk,hkr->bihr", q_n, w_uk)
    s = torch.einsum("bihr,bjr->bhij", q_c, c) + torch.einsum("bihd,bjd->bhij", q_r, k_r)
    p, j = positions(q_n.shape[1], c)
    of_latents, lse = attend(
        scale * s, (j <= p) | (not causal), c[:, :, None].expand(-1, -1, H, -1)
    )
    return torch.einsum("bihr,hvr->bihv", of_latents, w_uv.to(of_latents.dtype)), lse


def run(
    form: Form, sizes: Mapping[str, int], *, scale: float | None, return_lse: bool, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    queries = {name: given.pop(name) for name in ("q_n", "q_r")}
    keys = {name: given.pop(name) for name in ("c", "k_r")}
    scale = resolve_scale(scale, sizes["K"] + sizes["D"])
    o, lse = each_sequence(form, queries, keys, scale=scale, **given)
    return o, lse if return_lse else None


@attention_op(
    naive,
    absorbed,
    run=run,
    same_dtype=("q_n", "q_r", "c", "k_r", "w_uk", "w_uv"),
    outputs=("o", "lse"),
)
def mla(
    q_n: Float[Tensor, "B T_q H K"],
    q_r: Float[Tensor, "B T_q H D"],
    c: Float[Tensor, "B T_k R"],
    k_r: Float[Tensor, "B T_k D"],
    w_uk: Float[Tensor, "H K R"],
    w_uv: Float[Tensor, "H V R"],
    *,
    causal: bool = False,
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Multi-head latent attention, in its naive form.

        k_n_jh = w_uk_h c_j                                   key of head h without a position
        v_jh   = w_uv_h c_j
        s_ijh  = scale (q_n_ih · k_n_jh + q_r_ih · k_r_j)     j <= i + T_k - T_q, if causal
        lse_ih = log Σ_j exp(s_ijh)
        o_ih   = Σ_j exp(s_ijh - lse_ih) v_jh

    The cache of a token is (c_j, k_r_j). A row that sees no key gets o = 0, lse = -inf, and
    gradients 0.

    Args:
        q_n: Part of the queries without a position.
        q_r: Rotary part of the queries, already rotated. The paper rotates it after its own
            projection (decoupled rotary), so the rotation is no part of the op.
        c: Latents of the keys and values, R channels. The paper normalizes them before.
        k_r: Rotary key of each token, already rotated, shared by all heads.
        w_uk: Up-projection of each head to its keys.
        w_uv: Up-projection of each head to its values.
        scale: Factor of the whole logit. None and -1 mean `(K + D) ** -0.5`, any other finite
            number itself; a model with YaRN passes the product with its mscale².
        causal: Hide the keys after the query, aligned at the bottom right.

    Returns:
        o: In the dtype of q_n.
        lse: Natural logarithm, in the promoted dtype of the inputs of the logits; None unless
            `return_lse`.

    Source: DeepSeek-V2, arXiv 2405.04434, sections 2.1.2 (low-rank joint compression) and 2.1.3
        (decoupled rotary embedding), equations 9 to 19.
    """
