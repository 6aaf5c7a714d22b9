"""Linear attentions whose decay is a constant of the head: retention and lightning attention."""

import functools
import math

import torch
from jaxtyping import Float
from torch import Tensor

from reference.arguments import checked
from reference.linear.run import run
from reference.sequences import CuSeqlens


@checked(same_dtype=("q", "k", "v"))
def retention(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Retention, as a recurrence over tokens.

        γ_h = 1 - 2 ** (-5 - h)             head h = 0, 1, ..., H - 1
        S_t = γ_h S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    It is `simple_gla` with g = log γ_h, without the rotation of q and k and the normalisation of o
    that a layer adds. Always stable, as 0 < γ_h < 1.

    Args:
        q: queries `[B, T, H, K]`.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q.
        scale: factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.
        initial_state: state before the first token `[N, H, K, V]`, any float dtype. None means
            zero.
        output_final_state: return the state after the last token as well.
        reverse: run from the last token to the first. `initial_state` is then before the last
            token, and the final state after the first.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.

    Returns:
        o: `[B, T, H, V]`, in the dtype of q.
        final_state: `[N, H, K, V]`, in the promoted dtype of the inputs; None unless
            `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; q, k, v not of one dtype.
        ValueError: shapes that do not match; a scale that is NaN or infinite; `cu_seqlens` with
            B != 1, or that does not start at 0, decreases, or does not end at T.

    Source: Sun et al., Retentive Network, arXiv 2307.08621, equations 6 and 8.
    """
    return run(
        functools.partial(_recurrence, decay=_of_retention(q)),
        q,
        k,
        v,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
    )


@checked(same_dtype=("q", "k", "v"))
def retention_parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Retention, all tokens at once.

        D_ij = γ_h ** (i - j)   if j <= i else 0,    tokens i, j = 1, ..., T
        d_i  = γ_h ** i
        o    = scale · ((Q Kᵀ) ∘ D) V + scale · (d ∘ Q) S_0
        S_T  = d_T S_0 + (D_T ∘ K)ᵀ V

    With `reverse` the tokens are numbered from the end. Everything else is said of `retention`.

    Source: Sun et al., Retentive Network, arXiv 2307.08621, equation 5.
    """
    return run(
        functools.partial(_parallel, decay=_of_retention(q)),
        q,
        k,
        v,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
    )


@checked(same_dtype=("q", "k", "v"))
def lightning_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    layer_idx: int,
    num_layers: int,
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Lightning attention, as a recurrence over tokens.

        λ_h = exp(-8 h / H · (1 - l / L))   head h = 0, 1, ..., H - 1, layer l of L
        S_t = λ_h S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    It is `simple_gla` with g = log λ_h: head 0 never forgets, and the later the layer the less the
    others do. Always stable, as 0 < λ_h <= 1.

    Args:
        q: queries `[B, T, H, K]`.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q.
        layer_idx: l, from 0 to L.
        num_layers: L, at least 1.
        scale: factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.
        initial_state: state before the first token `[N, H, K, V]`, any float dtype. None means
            zero.
        output_final_state: return the state after the last token as well.
        reverse: run from the last token to the first. `initial_state` is then before the last
            token, and the final state after the first.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.

    Returns:
        o: `[B, T, H, V]`, in the dtype of q.
        final_state: `[N, H, K, V]`, in the promoted dtype of the inputs; None unless
            `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; q, k, v not of one dtype.
        ValueError: shapes that do not match; a layer that is not there; a scale that is NaN or
            infinite; `cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not
            end at T.

    Source: Qin et al., Lightning Attention-2, arXiv 2401.04658 (the recurrence); TransNormerLLM,
        arXiv 2307.14995, equation 2 (the decay).
    """
    return run(
        functools.partial(_recurrence, decay=_of_lightning(q, layer_idx, num_layers)),
        q,
        k,
        v,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
    )


@checked(same_dtype=("q", "k", "v"))
def lightning_attn_parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    layer_idx: int,
    num_layers: int,
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Lightning attention, all tokens at once.

        D_ij = λ_h ** (i - j)   if j <= i else 0,    tokens i, j = 1, ..., T
        d_i  = λ_h ** i
        o    = scale · ((Q Kᵀ) ∘ D) V + scale · (d ∘ Q) S_0
        S_T  = d_T S_0 + (D_T ∘ K)ᵀ V

    With `reverse` the tokens are numbered from the end. Everything else is said of
    `lightning_attn`.

    Source: Qin et al., Lightning Attention-2, arXiv 2401.04658 (its mask M is D).
    """
    return run(
        functools.partial(_parallel, decay=_of_lightning(q, layer_idx, num_layers)),
        q,
        k,
        v,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
    )


# Decays are Python numbers until they are stored: a rounding of theirs would be common to all
# tokens, and is none of the error that the budgets may grant.


def _of_retention(q: Tensor) -> Float[Tensor, "H"]:
    each = [1 - 2.0 ** (-5 - h) for h in range(q.shape[2])]
    return torch.tensor(each, dtype=torch.float64, device=q.device)


def _of_lightning(q: Tensor, layer_idx: int, num_layers: int) -> Float[Tensor, "H"]:
    if num_layers < 1:
        raise ValueError(f"num_layers: {num_layers}, expected at least 1")
    if not 0 <= layer_idx <= num_layers:
        raise ValueError(f"layer_idx: {layer_idx}, expected 0 to num_layers={num_layers}")
    H = q.shape[2]
    each = [math.exp(-8 * h / H * (1 - layer_idx / num_layers)) for h in range(H)]
    return torch.tensor(each, dtype=torch.float64, device=q.device)


def _recurrence(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    S: Float[Tensor, "B H K V"],
    scale: float,
    reverse: bool,
    decay: Float[Tensor, "H"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    tokens = range(q.shape[1])
    shrink = decay[:, None, None].to(S.dtype)
    o = {}
    for t in reversed(tokens) if reverse else tokens:
        S = shrink * S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o[t] = scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S)
    return torch.stack([o[t] for t in tokens], dim=1) if o else v, S


def _parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    S: Float[Tensor, "B H K V"],
    scale: float,
    reverse: bool,
    decay: Float[Tensor, "H"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    T = q.shape[1]
    position = torch.arange(1, T + 1, device=q.device)
    position = position.flip(0) if reverse else position
    distance = position[:, None] - position
    power = decay[:, None, None] ** distance.clamp(min=0)
    D = torch.where(distance >= 0, power, 0.0).to(S.dtype)
    d = (decay ** position[:, None]).to(S.dtype)[..., None]
    left = (decay ** (T - position)[:, None]).to(S.dtype)[..., None]

    weights = torch.einsum("bihk,bjhk->bhij", q, k) * D
    o = torch.einsum("bhij,bjhv->bihv", weights, v) + torch.einsum("bihk,bhkv->bihv", d * q, S)
    start = (decay**T).to(S.dtype)[:, None, None]
    return scale * o, start * S + torch.einsum("bjhk,bjhv->bhkv", left * k, v)
