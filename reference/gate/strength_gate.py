"""The strength of a write from what a layer projects."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.op import Form, op


def definition(x: Tensor, most: float) -> Tensor:
    return most * torch.sigmoid(x)


def hyperbolic(x: Tensor, most: float) -> Tensor:
    """β = most · (1 + tanh(x / 2)) / 2

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 4.5 (of exponentials).
    """
    return most * (1 + torch.tanh(x / 2)) / 2


def _run(form: Form, sizes: object, *, x: Tensor, allow_neg_eigval: bool) -> Tensor:
    beta: Tensor = form(x, 2.0 if allow_neg_eigval else 1.0)
    return beta


@op(definition, hyperbolic, run=_run, outputs=("beta",))
def strength_gate(
    x: Float[Tensor, "B T H"], *, allow_neg_eigval: bool = False
) -> Float[Tensor, "B T H"]:
    """The strength of a write, between 0 and 1, from any number.

        β = sigmoid(x)
        β = 2 sigmoid(x)            with `allow_neg_eigval`

    A strength above 1 turns the value that a unit key finds around: I - β k kᵀ has then the
    eigenvalue 1 - β below 0.

    Args:
        x: What a layer projects.
        allow_neg_eigval: Up to 2 and not up to 1.

    Returns:
        beta: In the dtype of x.

    Source: Yang et al., arXiv 2406.06484, section 3 (β); Grazzi et al., Unlocking State-Tracking in
        Linear RNNs Through Negative Eigenvalues, arXiv 2411.12537, section 4 (twice that).
    """
