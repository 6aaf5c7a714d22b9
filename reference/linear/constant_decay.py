"""Linear attentions whose decay is a constant of the head: retention and lightning attention."""

import math
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import ReversibleOptions, Run, recurrence

# Decays are Python numbers until they are stored: all tokens would share a rounding of theirs, and
# the error budgets do not grant it.


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, rates: list[float], S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    decay = torch.tensor(rates, dtype=torch.float64, device=q.device)[:, None, None].to(S.dtype)
    o = []
    for t in range(q.shape[1]):
        S = decay * S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, rates: list[float], S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """All tokens at once: a matrix of decays over an attention matrix.

        D_ij = γ_h ** (i - j)   if j <= i else 0,    tokens i, j = 1, ..., T
        d_i  = γ_h ** i
        o    = scale · ((Q Kᵀ) ∘ D) V + scale · (d ∘ Q) S_0
        S_T  = d_T S_0 + (D_T ∘ K)ᵀ V

    Source: Sun et al., Retentive Network, arXiv 2307.08621, equation 5; Qin et al., Lightning
        Attention-2, arXiv 2401.04658 (its mask M is D).
    """
    T = q.shape[1]
    decay = torch.tensor(rates, dtype=torch.float64, device=q.device)
    position = torch.arange(1, T + 1, device=q.device)
    distance = position[:, None] - position
    power = decay[:, None, None] ** distance.clamp(min=0)
    D = torch.where(distance >= 0, power, 0.0).to(S.dtype)
    d = (decay ** position[:, None]).to(S.dtype)[..., None]
    left = (decay ** (T - position)[:, None]).to(S.dtype)[..., None]

    weights = torch.einsum("bihk,bjhk->bhij", q, k) * D
    o = torch.einsum("bhij,bjhv->bihv", weights, v) + torch.einsum("bihk,bhkv->bihv", d * q, S)
    start = (decay**T).to(S.dtype)[:, None, None]
    return scale * o, start * S + torch.einsum("bjhk,bjhv->bhkv", left * k, v)


def _retained(run: Run, *, q: Tensor, **arguments: Any) -> tuple[Tensor, Tensor]:
    rates = [1 - 2.0 ** (-5 - h) for h in range(q.shape[2])]
    return run(q=q, rates=rates, **arguments)


def _retained_in_layer(
    run: Run,
    *,
    q: Tensor,
    layer_idx: int,
    num_layers: int,
    **arguments: Any,
) -> tuple[Tensor, Tensor]:
    if num_layers < 1:
        raise ValueError(f"num_layers: {num_layers}, expected at least 1")
    if not 0 <= layer_idx <= num_layers:
        raise ValueError(f"layer_idx: {layer_idx}, expected 0 to num_layers={num_layers}")
    H = q.shape[2]
    rates = [math.exp(-8 * h / H * (1 - layer_idx / num_layers)) for h in range(H)]
    return run(q=q, rates=rates, **arguments)


@recurrence(recurrent, parallel, around=_retained)
def retention(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    **options: Unpack[ReversibleOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Retention, as a recurrence over tokens.

        γ_h = 1 - 2 ** (-5 - h)             head h = 0, 1, ..., H - 1
        S_t = γ_h S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    It is `simple_gla` with g = log γ_h, without the rotation of q and k and the normalization of o
    that a layer adds. Always stable, as 0 < γ_h < 1.

    Source: Sun et al., Retentive Network, arXiv 2307.08621, equations 6 and 8.
    """


@recurrence(recurrent, parallel, around=_retained_in_layer)
def lightning_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    layer_idx: int,
    num_layers: int,
    **options: Unpack[ReversibleOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Lightning attention, as a recurrence over tokens.

        λ_h = exp(-8 h / H · (1 - l / L))   head h = 0, 1, ..., H - 1, layer l of L
        S_t = λ_h S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    It is `simple_gla` with g = log λ_h: head 0 never forgets, and the later the layer the less the
    others do. Always stable, as 0 < λ_h <= 1.

    Args:
        layer_idx: l, from 0 to L.
        num_layers: L, at least 1.

    Raises:
        ValueError: a layer below 0 or above L, no layers.

    Source: Qin et al., Lightning Attention-2, arXiv 2401.04658 (the recurrence); TransNormerLLM,
        arXiv 2307.14995, equation 2 (the decay).
    """
