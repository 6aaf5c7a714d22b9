"""Running sums over tokens, of a sequence or of its chunks."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.sequences import CuSeqlens
from reference.stateless import stateless


def recurrent(x: Tensor, chunk_size: int | None, reverse: bool) -> Tensor:
    T = x.shape[1]
    C, y = _checked(chunk_size) or T, [x[:, t] for t in range(T)]
    for t in reversed(range(T - 1)) if reverse else range(1, T):
        before = t + 1 if reverse else t - 1
        if before // C == t // C:
            y[t] = y[before] + x[:, t]
    return torch.stack(y, dim=1) if y else x


def product(x: Tensor, chunk_size: int | None, reverse: bool) -> Tensor:
    """A product with a block-diagonal matrix of triangles.

        y = M x,    M_ts = 1 if s <= t and floor(s / C) = floor(t / C), else 0

    and Mᵀ with `reverse`.

    Source: Blelloch, Prefix Sums and Their Applications, CMU-CS-90-190, 1990, section 1 (the sum of
        a prefix; segments are the chunks).
    """
    t = torch.arange(x.shape[1], device=x.device)
    chunk = t // (_checked(chunk_size) or max(len(t), 1))
    M = ((t[:, None] >= t) & (chunk[:, None] == chunk)).to(x.dtype)
    return (M.mT if reverse else M) @ x


def _checked(chunk_size: int | None) -> int | None:
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size: {chunk_size}, expected at least 1")
    return chunk_size


@stateless(recurrent, product, same_dtype=("x",), outputs=("y",))
def cumsum(
    x: Float[Tensor, "B T D"],
    *,
    chunk_size: int | None = None,
    reverse: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> Float[Tensor, "B T D"]:
    """Running sums over the tokens of each sequence, of each channel by itself.

        y_t = Σ_{s <= t} x_s

    With chunks of C tokens, counted from the start of the sequence, the sums start anew in each.

    Args:
        x: What is summed.
        chunk_size: C >= 1. None means one chunk.
        reverse: Sum from the last token of a chunk to its first, s >= t.

    Returns:
        y: In the dtype of x, rounded once.

    Raises:
        ValueError: a chunk_size below 1.

    Source: Yang et al., Gated Linear Attention, arXiv 2312.06635, section 4.2 (cumulative log
        decays of a chunk).
    """
