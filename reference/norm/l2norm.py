"""L2 normalization: every vector is divided by its length."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from reference.arguments import is_normal
from reference.op import Form, op

EPS = 1e-6


def quotient(x: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)


def scaled(x: Tensor, eps: float) -> Tensor:
    """The first dims of a unit vector.

        (y, ·) = z / |z|,    z = (x, sqrt ε) / max(|x_1|, ..., |x_D|, sqrt ε)

    No square overflows, nor do all of them underflow.

    Source: Blue, A portable Fortran program to find the Euclidean norm of a vector, ACM
        Transactions on Mathematical Software 4, 1978 (scaling by the largest).
    """
    z = torch.nn.functional.pad(x, (0, 1), value=math.sqrt(eps))
    z = z / z.detach().abs().amax(-1, keepdim=True)
    length: Tensor = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return z[..., :-1] / length


def check_eps(eps: float) -> None:
    if not is_normal(eps):
        raise ValueError(f"eps: {eps}, expected a positive finite number, normal in float32")


def _run(form: Form, sizes: object, x: Tensor, eps: float) -> Tensor:
    check_eps(eps)
    y: Tensor = form(x, eps)
    return y


@op(quotient, scaled, run=_run, outputs=("y",))
def l2norm(x: Float[Tensor, "B T H D"], *, eps: float = EPS) -> Float[Tensor, "B T H D"]:
    """Divide every vector by its length, softened near zero.

        y = x / sqrt(Σ_d x_d² + ε)

    ε stands under the root and is added to the sum, not to the mean. So a zero vector stays zero,
    its gradient is that of x / sqrt ε, and the length of y is below 1, by ε / (2 |x|²) for long x.

    Args:
        x: Vectors.
        eps: ε, positive and finite, in units of x².

    Returns:
        y: In the dtype of x.

    Raises:
        ValueError: an eps that is not positive and normal in float32.

    Source: Yang et al., Parallelizing Linear Transformers with the Delta Rule, arXiv 2406.06484,
        section 3.3 (of the keys and queries of the delta rule).
    """
