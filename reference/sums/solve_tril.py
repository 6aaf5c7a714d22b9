"""The inverses of the unit triangles that delta rules solve, one for each chunk of tokens."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.sequences import CuSeqlens
from reference.softmax.causal import causal


def substitution(A: Tensor) -> Tensor:
    C, rows = A.shape[-1], list[Tensor]()
    eye = torch.eye(C, dtype=A.dtype, device=A.device)
    for t in range(A.shape[1]):
        r = t % C
        x = eye[r].expand_as(A[:, t])
        if r:
            x = x - torch.einsum("bhc,bchd->bhd", A[:, t, :, :r], torch.stack(rows[t - r :], dim=1))
        rows.append(x)
    return torch.stack(rows, dim=1) if rows else A


def series(A: Tensor) -> Tensor:
    """The series of powers, which ends as A^C = 0.

        (I + A)⁻¹ = I - A + A² - ... ± A^{C-1}

    Source: Golub and Van Loan, Matrix Computations, 4th edition, section 2.3.4 (Neumann series).
    """
    T, C = A.shape[1], A.shape[-1]
    if T == 0:
        return A
    whole = torch.nn.functional.pad(A, (0, 0, 0, 0, 0, -T % C)).unflatten(1, (-1, C))
    whole = whole.transpose(2, 3).tril(-1)
    term = torch.eye(C, dtype=A.dtype, device=A.device).expand_as(whole)
    total = term
    for _ in range(C - 1):
        term = -(whole @ term)
        total = total + term
    return total.transpose(2, 3).flatten(1, 2)[:, :T]


@causal(substitution, series, same_dtype=("A",), outputs=("X",))
def solve_tril(
    A: Float[Tensor, "B T H C"], *, cu_seqlens: CuSeqlens | None = None
) -> Float[Tensor, "B T H C"]:
    """The inverse of a unit lower triangle for each chunk of C tokens.

        X = (I + L)⁻¹,    L_ij = A_ij if j < i else 0

    Rows are the tokens of a chunk, counted from the start of the sequence; the last chunk may have
    fewer than C, and its columns past them are 0. X is 1 on the diagonal and 0 above it.

    Args:
        A: The rows of L; nothing on or above its diagonal is read.

    Returns:
        X: In the dtype of A.

    Source: Yang et al., Parallelizing Linear Transformers with the Delta Rule, arXiv 2406.06484,
        section 3.2 (the UT transform).
    """
