"""Linear attention: a softmax-free attention whose whole past is one matrix."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.linear.normalize import normalized
from reference.recurrence import ReversibleOptions, recurrence


def recurrent(q: Tensor, k: Tensor, v: Tensor, S: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    o = []
    for t in range(q.shape[1]):
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(q: Tensor, k: Tensor, v: Tensor, S: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """All tokens at once: a masked attention matrix.

        o   = scale · ((Q Kᵀ) ∘ M) V + scale · Q S_0,    M_ij = 1 if j <= i else 0
        S_T = S_0 + Kᵀ V

    Source: Katharopoulos et al., Transformers are RNNs, arXiv 2006.16236, equations 8-9.
    """
    weights = torch.einsum("bihk,bjhk->bhij", q, k).tril()
    o = torch.einsum("bhij,bjhv->bihv", weights, v) + torch.einsum("bihk,bhkv->bihv", q, S)
    return scale * o, S + torch.einsum("bjhk,bjhv->bhkv", k, v)


@recurrence(recurrent, parallel, around=normalized)
def linear_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    normalize: bool = False,
    **options: Unpack[ReversibleOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+normalize"] | None]:
    """Causal linear attention, as a recurrence over tokens.

        S_t = S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    `normalize` divides by the sum of the weights. v gets one more channel that is 1 everywhere, so
    the last column of the state is z_t = z_{t-1} + k_t, and

        o_t = (S_tᵀ q_t) / (z_tᵀ q_t)

    in which the scale cancels; a row with scale = 0 or z_tᵀ q_t = 0 is 0, and so are its gradients.

    Args:
        initial_state: State before the first token, with V+1 columns if `normalize`. None means
            zero.

    Source: Katharopoulos et al., Transformers are RNNs, arXiv 2006.16236, equations 16-20.
    """
