"""The system that the delta rules solve when all tokens are taken at once."""

import torch
from jaxtyping import Float
from torch import Tensor


def solve_unit_lower(
    L: Float[Tensor, "B H T T"], Y: Float[Tensor, "B H T V"]
) -> Float[Tensor, "B H T V"]:
    """X in (I + L) X = Y, row by row from the first.

        x_i = y_i - Σ_{j < i} L_ij x_j

    Args:
        L: strictly lower triangular `[B, H, T, T]`; nothing else of it is read.
        Y: `[B, H, T, V]`.

    Returns:
        X: `[B, H, T, V]`, in the dtype of Y. Narrower dtypes than float32 are computed in float32.
    """
    dtype = torch.promote_types(Y.dtype, torch.float32)
    X: Tensor = torch.linalg.solve_triangular(
        L.to(dtype), Y.to(dtype), upper=False, unitriangular=True
    )
    return X.to(Y.dtype)
