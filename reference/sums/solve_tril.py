"""The inverses of the unit triangles that delta rules solve, one for each chunk of tokens."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.sequences import CuSeqlens
from reference.stateless import stateless


def substitution(A: Tensor) -> Tensor:
    L = _chunks(A)
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(L)
    X = eye[..., :1, :]
    for r in range(1, A.shape[-1]):
        X = torch.cat([X, eye[..., r : r + 1, :] - L[..., r : r + 1, :r] @ X], dim=-2)
    return _rows(X, A.shape[1])


def series(A: Tensor) -> Tensor:
    """The series of powers, which ends as L^C = 0.

        (I + L)⁻¹ = I - L + L² - ... ± L^{C-1}

    Source: Golub and Van Loan, Matrix Computations, 4th edition, section 2.3.4 (Neumann series).
    """
    L = _chunks(A)
    total = term = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(L)
    for _ in range(A.shape[-1] - 1):
        term = -(L @ term)
        total = total + term
    return _rows(total, A.shape[1])


def _chunks(A: Tensor) -> Tensor:
    """`[B, T, H, C]` → `[B, T / C, H, C, C]`, strictly lower triangular; rows past T are 0."""
    T, C = A.shape[1], A.shape[-1]
    if C == 0:
        raise ValueError("A: no columns (C = 0), expected at least 1")
    whole: Tensor = torch.nn.functional.pad(A, (0, 0, 0, 0, 0, -T % C)).unflatten(
        1, (-(-T // C), C)
    )
    return whole.transpose(2, 3).tril(-1)


def _rows(X: Tensor, T: int) -> Tensor:
    rows: Tensor = X.transpose(2, 3).flatten(1, 2)
    return rows[:, :T]


@stateless(substitution, series, same_dtype=("A",), outputs=("X",))
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

    Raises:
        ValueError: no columns (C = 0).

    Source: Yang et al., Parallelizing Linear Transformers with the Delta Rule, arXiv 2406.06484,
        section 3.2 (the UT transform).
    """
