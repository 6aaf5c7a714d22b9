"""Simple gated linear attention: linear attention whose state forgets, all channels alike."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.arguments import checked
from reference.decay import decays
from reference.linear.run import run
from reference.sequences import CuSeqlens


@checked(same_dtype=("q", "k", "v"))
def simple_gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None = None,
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Linear attention with one decay per head and token, as a recurrence over tokens.

        S_t = exp(g_t) S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    Stable for g <= 0: an error of the state does not grow on its way.

    Args:
        q: queries `[B, T, H, K]`.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q.
        g: natural logarithm of the decay `[B, T, H]`, any float dtype, meant to be <= 0, -inf
            included. None means no decay.
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

    Source: Dao and Gu, Transformers are SSMs, arXiv 2405.21060, section 2.4 (a transition that is a
        number times the identity); Yang et al., arXiv 2312.06635, table 1 (as a linear attention).
    """
    return run(
        _recurrence,
        q,
        k,
        v,
        g,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
    )


def _recurrence(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None,
    S: Float[Tensor, "B H K V"],
    scale: float,
    reverse: bool,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    tokens = range(q.shape[1])
    o = {}
    for t in reversed(tokens) if reverse else tokens:
        if g is not None:
            S = torch.exp(g[:, t, :, None, None]) * S
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o[t] = scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S)
    return torch.stack([o[t] for t in tokens], dim=1) if o else v, S


@checked(same_dtype=("q", "k", "v"))
def simple_gla_parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None = None,
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Linear attention with one decay per head and token, all tokens at once.

        D_ij = exp(Σ_{j < t <= i} g_t)   if j <= i else 0
        d_i  = exp(Σ_{t <= i} g_t)
        o    = scale · ((Q Kᵀ) ∘ D) V + scale · (d ∘ Q) S_0
        S_T  = d_T S_0 + (D_T ∘ K)ᵀ V

    With `reverse` the tokens are numbered from the end. Everything else is said of `simple_gla`.

    Source: Dao and Gu, arXiv 2405.21060, section 2.4 (the dual form).
    """
    return run(
        _parallel,
        q,
        k,
        v,
        g,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
    )


def _parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None,
    S: Float[Tensor, "B H K V"],
    scale: float,
    reverse: bool,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    if q.shape[1] == 0:
        return v, S
    from_start, between = decays(torch.zeros_like(q[..., 0]) if g is None else g, reverse)
    d, D = from_start[..., None], between.permute(0, 3, 1, 2)
    last = 0 if reverse else -1

    weights = torch.einsum("bihk,bjhk->bhij", q, k) * (D.triu() if reverse else D.tril())
    o = torch.einsum("bhij,bjhv->bihv", weights, v) + torch.einsum("bihk,bhkv->bihv", d * q, S)
    written = torch.einsum("bjhk,bjhv->bhkv", between[:, last, :, :, None] * k, v)
    return scale * o, d[:, last, :, :, None] * S + written
