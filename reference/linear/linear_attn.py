"""Linear attention: a softmax-free attention whose whole past is one matrix."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.arguments import checked
from reference.linear.run import run
from reference.sequences import CuSeqlens


@checked(same_dtype=("q", "k", "v"))
def linear_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    scale: float | None = None,
    normalize: bool = False,
    initial_state: Float[Tensor, "N H K V+normalize"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+normalize"] | None]:
    """Causal linear attention, as a recurrence over tokens.

        S_t = S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    `normalize` divides by the sum of the weights. v gets one more channel that is 1 everywhere, so
    the last column of the state is z_t = z_{t-1} + k_t, and

        o_t = (S_tᵀ q_t) / (z_tᵀ q_t)

    in which the scale cancels; a row with scale = 0 or z_tᵀ q_t = 0 is 0, and so are its gradients.

    Args:
        q: queries `[B, T, H, K]`.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q.
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

    Source: Katharopoulos et al., Transformers are RNNs, arXiv 2006.16236, equations 16-20.
    """
    return run(
        _recurrence,
        q,
        k,
        v,
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
    S: Float[Tensor, "B H K V"],
    scale: float,
    reverse: bool,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    tokens = range(q.shape[1])
    o = {}
    for t in reversed(tokens) if reverse else tokens:
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o[t] = scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S)
    return torch.stack([o[t] for t in tokens], dim=1) if o else v, S


@checked(same_dtype=("q", "k", "v"))
def linear_attn_parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    scale: float | None = None,
    normalize: bool = False,
    initial_state: Float[Tensor, "N H K V+normalize"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+normalize"] | None]:
    """Causal linear attention, all tokens at once: a masked attention matrix.

        o   = scale · ((Q Kᵀ) ∘ M) V + scale · Q S_0,    M_ij = 1 if j <= i else 0
        S_T = S_0 + Kᵀ V

    With `reverse`, M_ij = 1 if j >= i. Everything else is said of `linear_attn`.

    Source: Katharopoulos et al., Transformers are RNNs, arXiv 2006.16236, equations 8-9.
    """
    return run(
        _parallel,
        q,
        k,
        v,
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
    S: Float[Tensor, "B H K V"],
    scale: float,
    reverse: bool,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    weights = torch.einsum("bihk,bjhk->bhij", q, k)
    weights = weights.triu() if reverse else weights.tril()
    o = torch.einsum("bhij,bjhv->bihv", weights, v) + torch.einsum("bihk,bhkv->bihv", q, S)
    return scale * o, S + torch.einsum("bjhk,bjhv->bhkv", k, v)
