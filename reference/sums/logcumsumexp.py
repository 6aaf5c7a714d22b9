"""The logarithm of running sums of exponentials."""

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import StateOptions, recurrence


def recurrent(x: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    z = []
    for t in range(x.shape[1]):
        nothing = torch.isneginf(S) & torch.isneginf(x[:, t])
        # Else its gradients would be -inf less -inf.
        S = torch.where(nothing, -math.inf, torch.logaddexp(torch.where(nothing, 0.0, S), x[:, t]))
        z.append(S)
    return torch.stack(z, dim=1) if z else x, S


def parallel(x: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Each sum by itself, beside the largest of its terms.

        z_t = m_t + log Σ_{s <= t} exp(x_s - m_t),    m_t = max(x_0, ..., x_t)

    with x_0 the initial state; -inf where all of them are.

    Source: Blanchard, Higham and Higham, Accurately computing the log-sum-exp and softmax
        functions, IMA Journal of Numerical Analysis 41, 2021, equation 1.4.
    """
    T = x.shape[1]
    if T == 0:
        return x, S
    terms = torch.cat([S[:, None], x], dim=1)[:, None]
    seen = torch.ones(T, T + 1, dtype=torch.bool, device=x.device).tril(1)[..., None]
    terms = torch.where(seen, terms, -math.inf)
    most = terms.detach().amax(2, keepdim=True)
    finite = torch.where(most == -math.inf, 0.0, most)
    sums = torch.exp(terms - finite).sum(2)
    nothing = sums == 0
    z = torch.where(
        nothing, -math.inf, torch.log(torch.where(nothing, 1.0, sums)) + finite[:, :, 0]
    )
    return z, z[:, -1]


@recurrence(
    recurrent,
    parallel,
    same_dtype=("x",),
    start=lambda zeros: zeros - math.inf,
    outputs=("z", "final_state"),
)
def logcumsumexp(
    x: Float[Tensor, "B T D"],
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N D"] | None]:
    """The logarithm of running sums of exponentials, of each channel by itself.

        z_t = log(exp(z_{t-1}) + exp(x_t))

    It is the normalizer of `lightnet` and `abc`.

    Args:
        x: Logarithms of what is summed, below +inf; -inf is that of 0.
        initial_state: z before the first token. None means -inf, the sum of nothing.

    Source: Blanchard, Higham and Higham, Accurately computing the log-sum-exp and softmax
        functions, IMA Journal of Numerical Analysis 41, 2021 (log-sum-exp; here of each prefix).
    """
