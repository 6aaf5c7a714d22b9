"""Gated linear attention: linear attention whose state forgets, channel by channel."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.arguments import checked
from reference.decay import decays
from reference.linear.run import run
from reference.sequences import CuSeqlens


@checked(same_dtype=("q", "k", "v"))
def gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    *,
    gv: Float[Tensor, "B T H V"] | None = None,
    scale: float | None = None,
    normalize: bool = False,
    initial_state: Float[Tensor, "N H K V+normalize"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+normalize"] | None]:
    """Gated linear attention, as a recurrence over tokens.

        S_t = diag(exp g_t) S_{t-1} diag(exp gv_t) + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    `normalize` divides by the sum of the weights. v gets one more channel that is 1 everywhere and
    that gv does not decay, so the last column of the state is z_t = exp(g_t) z_{t-1} + k_t, and

        o_t = (S_tᵀ q_t) / (z_tᵀ q_t)

    in which the scale cancels; a row with scale = 0 or z_tᵀ q_t = 0 is 0, and so are its gradients.

    Args:
        q: queries `[B, T, H, K]`.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q.
        g: natural logarithm of the decay of each key channel `[B, T, H, K]`, any float dtype,
            meant to be <= 0, -inf included. None means no decay.
        gv: the same for each value channel `[B, T, H, V]`.
        scale: factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.
        normalize: divide each row by its sum of weights; meant for q, k >= 0 and so for a state
            whose last column is not negative: where the sum passes through 0 there is a pole.
        initial_state: state before the first token `[N, H, K, V]`, with `normalize`
            `[N, H, K, V+1]`; any float dtype. None means zero.
        output_final_state: return the state after the last token as well.
        reverse: run from the last token to the first. `initial_state` is then before the last
            token, and the final state after the first.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.

    Returns:
        o: `[B, T, H, V]`, in the dtype of q.
        final_state: `[N, H, K, V]` (or V+1), in the promoted dtype of the inputs; None unless
            `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; q, k, v not of one dtype.
        ValueError: shapes that do not match; a scale that is NaN or infinite; `cu_seqlens` with
            B != 1, or that does not start at 0, decreases, or does not end at T.

    Source: Yang et al., Gated Linear Attention Transformers with Hardware-Efficient Training,
        arXiv 2312.06635, equation 3 (g) and appendix C (gv).
    """
    return run(
        _recurrence,
        q,
        k,
        v,
        g,
        gv,
        scale=scale,
        normalize=normalize,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
    )


def _recurrence(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None,
    gv: Float[Tensor, "B T H V"] | None,
    S: Float[Tensor, "B H K V"],
    scale: float,
    reverse: bool,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    tokens = range(q.shape[1])
    o = {}
    for t in reversed(tokens) if reverse else tokens:
        if g is not None:
            S = S * torch.exp(g[:, t, :, :, None])
        if gv is not None:
            S = S * torch.exp(gv[:, t, :, None, :])
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o[t] = scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S)
    return torch.stack([o[t] for t in tokens], dim=1) if o else v, S


@checked(same_dtype=("q", "k", "v"))
def gla_parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    *,
    gv: Float[Tensor, "B T H V"] | None = None,
    scale: float | None = None,
    normalize: bool = False,
    initial_state: Float[Tensor, "N H K V+normalize"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+normalize"] | None]:
    """Gated linear attention, all tokens at once: each pair of tokens has its own decay.

        k_ij = exp(Σ_{j < t <= i} g_t) ∘ k_j                      key j as token i finds it
        v_ij = exp(Σ_{j < t <= i} gv_t) ∘ v_j                     its value
        S_i0 = diag(exp Σ_{t <= i} g_t) S_0 diag(exp Σ_{t <= i} gv_t)
        o_i  = scale · (Σ_{j <= i} (q_i · k_ij) v_ij + S_i0ᵀ q_i)
        S_T  = Σ_j k_Tj v_Tjᵀ + S_T0

    Each exponent is a sum of its own and not a difference of prefix sums, which would lose small
    terms behind a large one. With `reverse` the tokens are numbered from the end. Everything else
    is said of `gla`.

    Source: Yang et al., arXiv 2312.06635, section 4.1 and appendix C.1 (parallel form), without the
        division of cumulative products.
    """
    return run(
        _parallel,
        q,
        k,
        v,
        g,
        gv,
        scale=scale,
        normalize=normalize,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
    )


def _parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None,
    gv: Float[Tensor, "B T H V"] | None,
    S: Float[Tensor, "B H K V"],
    scale: float,
    reverse: bool,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    if q.shape[1] == 0:
        return v, S
    keys, values, carried = k[:, None], v[:, None], S[:, None]
    if g is not None:
        from_start, between = decays(g, reverse)
        keys, carried = between * keys, from_start[..., :, None] * carried
    if gv is not None:
        from_start, between = decays(gv, reverse)
        values, carried = between * values, carried * from_start[..., None, :]

    A = torch.einsum("bihk,bijhk->bhij", q, keys)
    A = A.triu() if reverse else A.tril()
    o = torch.einsum("bhij,bijhv->bihv", A, values) + torch.einsum("bihk,bihkv->bihv", q, carried)
    last = 0 if reverse else -1
    written = torch.einsum("bjhk,bjhv->bhkv", keys[:, last], values[:, last])
    return scale * o, carried[:, last] + written
