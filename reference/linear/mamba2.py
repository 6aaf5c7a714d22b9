"""Mamba-2: a selective state space whose state matrix is a number times the identity."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.recurrence import StateOptions, recurrence


def recurrent(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, S: Tensor
) -> tuple[Tensor, Tensor]:
    y = []
    for t in range(x.shape[1]):
        step = dt[:, t, :, None]
        S = torch.exp(dt[:, t] * A)[..., None, None] * S
        S = S + torch.einsum("bhk,bhv->bhkv", B[:, t], step * x[:, t])
        read = torch.einsum("bhk,bhkv->bhv", C[:, t], S)
        y.append(read if D is None else read + D[:, None] * x[:, t])
    return torch.stack(y, dim=1) if y else x, S


def dual(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, S: Tensor
) -> tuple[Tensor, Tensor]:
    """The dual form: one matrix of all pairs of tokens.

        a_t  = exp(dt_t A)
        L_ij = a_i a_{i-1} ... a_{j+1}   if j <= i else 0        (1-semiseparable; L_ii = 1)
        M    = L ∘ (C Bᵀ) diag(dt)
        y    = M X + D X + (Π_{t <= i} a_t) C_i S_0
        S_T  = (Π_t a_t) S_0 + Σ_j L_Tj dt_j B_j x_jᵀ

    with the entries of L as exponentials of sums, as their logarithms are dt A.

    Source: Dao and Gu, Transformers are SSMs, arXiv 2405.21060, equation 3 (the matrix) and section
        5.1 (for a number times the identity).
    """
    if x.shape[1] == 0:
        return x, S
    from_start, between = decays(dt * A)
    from_start, L = from_start.transpose(1, 2)[..., None], between.permute(0, 3, 1, 2).tril()
    X, step, B, C = (z.transpose(1, 2) for z in (x, dt[..., None], B, C))

    M = L * (C @ B.mT) * step.mT
    y = M @ X + from_start * (C @ S)
    if D is not None:
        y = y + D[:, None, None] * X
    written = (L[:, :, -1, :, None] * B).mT @ (step * X)
    return y.transpose(1, 2), from_start[:, :, -1:] * S + written


@recurrence(
    recurrent, dual, same_dtype=("x", "B", "C"), groups="groups", outputs=("y", "final_state")
)
def mamba2(
    x: Float[Tensor, "B T H V"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, "H"],
    B: Float[Tensor, "B T G K"],
    C: Float[Tensor, "B T G K"],
    D: Float[Tensor, "H"] | None = None,
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The state space of Mamba-2, as a recurrence over tokens.

        S_t = exp(dt_t A) S_{t-1} + dt_t B_t x_tᵀ
        y_t = S_tᵀ C_t + D x_t              (read after write)

    The paper's head dim P is V here, and its state dim N is K. Head h reads group h // (H / G) of B
    and C. It is `simple_gla` with q = C, k = B, v = dt ∘ x, g = dt A and scale 1, plus D x.

    Stable for dt A <= 0: an error of the state does not grow on its way.

    Args:
        x: Inputs.
        dt: Step of each token, as it multiplies A: any bias is added and softplus taken before.
            Meant to be >= 0.
        A: Rate of each head, meant to be <= 0.
        B: Input projection of each token, the key of a write.
        C: Output projection of each token, the query of a read.
        D: Weight of the skip connection. None means 0.

    Source: Dao and Gu, Transformers are SSMs, arXiv 2405.21060, section 2.4 (the recurrence) and
        section 7.2 (heads and groups); Gu and Dao, Mamba, arXiv 2312.00752, equation 4, whose step
        of B is taken to first order, dt B, as the models do.
    """
