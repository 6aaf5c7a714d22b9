"""Means over the chunks of each sequence."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.sequences import CuSeqlens
from reference.stateless import stateless


def by_chunk(x: Tensor, chunk_size: int) -> Tensor:
    C, T = _checked(chunk_size), x.shape[1]
    y = [x[:, start : start + C].mean(1) for start in range(0, T, C)]
    return torch.stack(y, dim=1) if y else x


def product(x: Tensor, chunk_size: int) -> Tensor:
    """A product with a matrix of weights.

    y = P x,    P_ct = 1 / n_c if floor(t / C) = c, else 0,    n_c = Σ_t [floor(t / C) = c]
    """
    C, T = _checked(chunk_size), x.shape[1]
    t = torch.arange(T, device=x.device)
    own = (t // C == torch.arange(-(-T // C), device=x.device)[:, None]).to(x.dtype)
    return torch.einsum("ct,bthd->bchd", own / own.sum(1, keepdim=True), x)


def _checked(chunk_size: int) -> int:
    if chunk_size < 1:
        raise ValueError(f"chunk_size: {chunk_size}, expected at least 1")
    return chunk_size


@stateless(by_chunk, product, same_dtype=("x",), outputs=("y",))
def mean_pooling(
    x: Float[Tensor, "B T H D"],
    chunk_size: int,
    *,
    cu_seqlens: CuSeqlens | None = None,
) -> Float[Tensor, "B M H D"]:
    """The mean of each chunk of C tokens, counted from the start of the sequence.

        y_c = 1/n_c Σ_{t = cC}^{cC + n_c - 1} x_t,    n_c = min(C, T - cC)

    A sequence of T tokens has ceil(T / C) chunks, and M are those of all packed sequences, in their
    order. The last may have fewer tokens, and its mean is over those.

    Args:
        x: What is averaged.
        chunk_size: C >= 1.

    Returns:
        y: In the dtype of x, rounded once.

    Raises:
        ValueError: a chunk_size below 1.

    Source: Yuan et al., Native Sparse Attention, arXiv 2502.11089, equation 7, with a mean for φ
        and strides as long as blocks.
    """
