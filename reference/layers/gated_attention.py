"""Gated attention: normalized queries and keys, a partial rotation, and a gate of the output."""

from collections.abc import Mapping
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from reference.heads import heads_per_group
from reference.norm.l2norm import EPS, check_eps
from reference.op import Form, op
from reference.position.rotary import as_complex, rotation
from reference.sequences import BAD_BOUNDARIES, CuSeqlens, sequences
from reference.softmax.attention import attention
from reference.softmax.run import check_window


def _normalized(u: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (1 + weight) * u / torch.sqrt((u * u).mean(-1, keepdim=True) + eps)


def definition(
    x: Tensor, w_q: Tensor, w_g: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor,
    q_norm: Tensor, k_norm: Tensor, cos: Tensor, sin: Tensor, *, eps: float, window: int | None,
) -> Tensor:  # fmt: skip
    H, K, P = *w_q.shape[:2], cos.shape[1]
    group = torch.arange(H, device=x.device) // (H // len(w_k))
    keys, values, y = [], [], []
    for t in range(x.shape[1]):
        q, k, v, gate = (torch.einsum("hkm,bm->bhk", w, x[:, t]) for w in (w_q, w_k, w_v, w_g))
        q, k = _normalized(q, q_norm, eps), _normalized(k, k_norm, eps)
        q, k = (
            torch.cat([rotation(u, cos[t], sin[t], False, False), u[..., 2 * P :]], -1)
            for u in (q, k)
        )
        keys.append(k[:, group])
        values.append(v[:, group])
        first = 0 if window is None else max(0, t + 1 - window)
        seen = torch.stack(keys[first:], 2), torch.stack(values[first:], 2)
        p = torch.softmax(K**-0.5 * torch.einsum("bhk,bhjk->bhj", q, seen[0]), -1)
        o = torch.einsum("bhj,bhjk->bhk", p, seen[1])
        y.append(torch.einsum("mhk,bhk->bm", w_o, torch.sigmoid(gate) * o))
    return torch.stack(y, 1) if y else x


def composed(
    x: Tensor, w_q: Tensor, w_g: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor,
    q_norm: Tensor, k_norm: Tensor, cos: Tensor, sin: Tensor, *, eps: float, window: int | None,
) -> Tensor:  # fmt: skip
    """All tokens at once, by `reference.attention`.

        n(u, w) = (1 + w) ∘ sqrt K u / |(u, sqrt(K ε))|
        sigmoid(z) = (1 + tanh(z / 2)) / 2

    and a rotation is a product of complex numbers.

    Source: Qiu et al., Gated Attention for Large Language Models, arXiv 2505.06708, equation 5
        (the gate behind the weighted sum).
    """
    (T, K), P = (x.shape[1], w_q.shape[1]), cos.shape[1]

    def projected(w: Tensor) -> Tensor:
        heads: Tensor = (x @ w.flatten(0, 1).mT).unflatten(-1, w.shape[:2])
        return heads

    def positioned(u: Tensor, weight: Tensor) -> Tensor:
        longer = torch.cat([u, torch.full_like(u[..., :1], (K * eps) ** 0.5)], -1)
        u = K**0.5 * u / torch.linalg.vector_norm(longer, dim=-1, keepdim=True)
        u = u + weight * u
        turned = as_complex(u, cos[:T, None], sin[:T, None], False, False)
        return torch.cat([turned, u[..., 2 * P :]], -1)

    q, k = positioned(projected(w_q), q_norm), positioned(projected(w_k), k_norm)
    o, _ = attention(q, k, projected(w_v), causal=True, window=window)
    gate = (1 + torch.tanh(projected(w_g) / 2)) / 2
    return (o * gate).flatten(2) @ w_o.flatten(1).mT


def _run(
    form: Form,
    sizes: Mapping[str, int],
    *,
    x: Tensor,
    eps: float,
    window: int | None,
    cu_seqlens: Tensor | None,
    **weights: Tensor,
) -> Tensor:
    check_eps(eps)
    check_window(window)
    heads_per_group("w_q", sizes["H"], sizes["G"], ("w_k", "w_v"))
    if 2 * sizes["P"] > sizes["K"]:
        raise ValueError(f"cos: of {sizes['P']} pairs, expected at most K / 2 = {sizes['K'] // 2}")
    parts = list(sequences(cu_seqlens, *x.shape[:2]))
    longest = max((t.stop - t.start for _, t in parts), default=0)
    if longest > sizes["R"]:
        raise ValueError(f"cos: of {sizes['R']} positions, expected at least {longest}")
    dtype = reduce(torch.promote_types, (w.dtype for w in weights.values()), x.dtype)
    weights = {name: w.to(dtype) for name, w in weights.items()}
    y = [form(x.to(dtype)[:, t], **weights, eps=eps, window=window) for _, t in parts]
    return torch.cat(y, 1).to(x.dtype)


@op(
    definition,
    composed,
    run=_run,
    outputs=("y",),
    raises=(
        "H not G, 2 G, 3 G, ...",
        "an eps that is not positive and normal in float32",
        "a window below 1",
        "tables of more than K / 2 pairs, or of fewer positions than a sequence",
        BAD_BOUNDARIES,
    ),
)
def gated_attention(
    x: Float[Tensor, "B T M"],
    w_q: Float[Tensor, "H K M"],
    w_g: Float[Tensor, "H K M"],
    w_k: Float[Tensor, "G K M"],
    w_v: Float[Tensor, "G K M"],
    w_o: Float[Tensor, "M H K"],
    q_norm: Float[Tensor, "K"],
    k_norm: Float[Tensor, "K"],
    cos: Float[Tensor, "R P"],
    sin: Float[Tensor, "R P"],
    *,
    eps: float = EPS,
    window: int | None = None,
    cu_seqlens: CuSeqlens | None = None,
) -> Float[Tensor, "B T M"]:
    """The token mixer of Qwen3-Next's layers with attention, as a function of its weights.

        n(u, w) = (1 + w) ∘ u / sqrt(Σ_d u_d² / K + ε)
        q_th = R_t n(w_q_h x_t, q_norm)
        k_tg = R_t n(w_k_g x_t, k_norm)
        v_tg = w_v_g x_t
        o_th = Σ_j softmax_j(q_th · k_jg / sqrt K) v_jg                 0 <= t - j < W  (window)
        y_t  = Σ_h w_o_h (o_th ∘ sigmoid(w_g_h x_t))

    R_t rotates the first 2P dims of a head, in halves, by the angles of position t, the place of
    the token in its sequence. Head h reads kv head g = h // (H / G).

    Args:
        x: Hidden states, M channels.
        w_q: Projections to queries.
        w_g: Projections to gates, one for each channel of the output.
        w_k: Projections to keys.
        w_v: Projections to values.
        w_o: Projection of all heads to y.
        q_norm: Weight of the norm of queries, centred at 0: its factor is 1 + q_norm.
        k_norm: The same of keys.
        cos: Cosines of the angles of each position and pair of dims.
        sin: Their sines.
        eps: ε, positive and finite, added to the mean square.
        window: W >= 1, the number of keys seen, the query's own included. None means all.
        cu_seqlens: Boundaries of N packed sequences, in tokens; B is then 1. None means N = B.

    Returns:
        y: In the dtype of x.

    Source: Qiu et al., Gated Attention for Large Language Models, arXiv 2505.06708, section 2.2
        (gate); Dehghani et al., arXiv 2302.05442, section 2 (norms of queries and keys);
        transformers 5, `Qwen3NextAttention` (weights centred at 0, and all of it together).
    """
