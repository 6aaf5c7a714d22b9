"""Normalization of a layer's output, and its gate."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from reference.norm.l2norm import EPS, check_eps
from reference.op import Form, op


def _activated(z: Tensor, activation: str) -> Tensor:
    return z * torch.sigmoid(z) if activation == "silu" else torch.sigmoid(z)


def _by_tanh(z: Tensor, activation: str) -> Tensor:
    half = (1 + torch.tanh(z / 2)) / 2
    return z * half if activation == "silu" else half


def root_mean_square(
    x: Tensor, z: Tensor, weight: Tensor, eps: float, activation: str, gate_first: bool
) -> Tensor:
    a = _activated(z, activation)
    u = x * a if gate_first else x
    n = u / torch.sqrt((u * u).mean(-1, keepdim=True) + eps)
    return n * weight if gate_first else n * weight * a


def longer_vector(
    x: Tensor, z: Tensor, weight: Tensor, eps: float, activation: str, gate_first: bool
) -> Tensor:
    """The first dims of a vector of length sqrt D.

        (n, ·) = sqrt D · w / |w|,    w = (u, sqrt(D ε)) / max(|u_1|, ..., |u_D|, sqrt(D ε))

    and sigmoid(z) = (1 + tanh(z / 2)) / 2.

    Source: Blue, A portable Fortran program to find the Euclidean norm of a vector, ACM
        Transactions on Mathematical Software 4, 1978 (scaling by the largest).
    """
    a = _by_tanh(z, activation)
    n = _normalized(x * a if gate_first else x, eps)
    return n * weight if gate_first else n * weight * a


def _normalized(u: Tensor, eps: float) -> Tensor:
    D = u.shape[-1]
    w = torch.nn.functional.pad(u, (0, 1), value=math.sqrt(D * eps))
    w = w / w.detach().abs().amax(-1, keepdim=True)
    length: Tensor = torch.linalg.vector_norm(w, dim=-1, keepdim=True)
    return math.sqrt(D) * w[..., :-1] / length


def deviation(
    x: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: float, activation: str,
    gate_first: bool,
) -> Tensor:  # fmt: skip
    a = _activated(z, activation)
    u = x * a if gate_first else x
    u = u - u.mean(-1, keepdim=True)
    n = u / torch.sqrt((u * u).mean(-1, keepdim=True) + eps)
    return n * weight + bias if gate_first else (n * weight + bias) * a


def projection(
    x: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: float, activation: str,
    gate_first: bool,
) -> Tensor:  # fmt: skip
    """`deviation` with u projected on the plane of vectors whose sum is 0.

        u' = (I - 1 1ᵀ / D) u

    Source: Brody et al., On the Expressivity Role of LayerNorm in Transformers' Attention, arXiv
        2305.02582, section 3 (a projection).
    """
    a, D = _by_tanh(z, activation), x.shape[-1]
    P = torch.eye(D, dtype=x.dtype, device=x.device) - 1 / D
    n = _normalized((x * a if gate_first else x) @ P, eps)
    return n * weight + bias if gate_first else (n * weight + bias) * a


def _run(
    form: Form, sizes: dict[str, int], *, x: Tensor, z: Tensor, eps: float, activation: str,
    gate_first: bool, **parameters: Tensor | None,
) -> Tensor:  # fmt: skip
    check_eps(eps)
    if activation not in ("silu", "sigmoid"):
        raise ValueError(f"activation: {activation!r}, expected 'silu' or 'sigmoid'")
    dtype = x.dtype
    for p in parameters.values():
        dtype = dtype if p is None else torch.promote_types(dtype, p.dtype)
    filled = {
        name: x.new_full((sizes["D"],), float(name == "weight"), dtype=dtype) if p is None else p
        for name, p in parameters.items()
    }
    y: Tensor = form(
        x.to(dtype),
        z.to(dtype),
        **{name: p.to(dtype) for name, p in filled.items()},
        eps=eps,
        activation=activation,
        gate_first=gate_first,
    )
    return y.to(x.dtype)


@op(root_mean_square, longer_vector, run=_run, same_dtype=("x", "z"), outputs=("y",))
def rms_norm_gated(
    x: Float[Tensor, "B T H D"],
    z: Float[Tensor, "B T H D"],
    weight: Float[Tensor, "D"] | None = None,
    *,
    eps: float = EPS,
    activation: str = "silu",
    gate_first: bool = False,
) -> Float[Tensor, "B T H D"]:
    """Divide every vector by its root mean square, and gate it.

        rms(u) = u / sqrt(Σ_d u_d² / D + ε)
        y = rms(x) ∘ weight ∘ f(z)
        y = rms(x ∘ f(z)) ∘ weight             with `gate_first`

    f is silu(z) = z sigmoid(z), or sigmoid. ε is added to the mean.

    Args:
        x: Vectors.
        z: What their gates are made of.
        weight: Factor of each channel. None means 1.
        eps: ε, positive and finite, in units of x².
        activation: "silu" or "sigmoid".
        gate_first: Normalize what is gated, as Mamba-2 does.

    Returns:
        y: In the dtype of x.

    Raises:
        ValueError: an eps that is not positive and normal in float32; another activation.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4
        (without its ε and its gate, which are those of flash-linear-attention 0.6.0).
    """


@op(deviation, projection, run=_run, same_dtype=("x", "z"), outputs=("y",))
def layer_norm_gated(
    x: Float[Tensor, "B T H D"],
    z: Float[Tensor, "B T H D"],
    weight: Float[Tensor, "D"] | None = None,
    bias: Float[Tensor, "D"] | None = None,
    *,
    eps: float = EPS,
    activation: str = "silu",
    gate_first: bool = False,
) -> Float[Tensor, "B T H D"]:
    """Shift every vector to mean 0, divide it by its deviation, and gate it.

        m = Σ_d u_d / D,    norm(u) = (u - m) / sqrt(Σ_d (u_d - m)² / D + ε)
        y = (norm(x) ∘ weight + bias) ∘ f(z)
        y = norm(x ∘ f(z)) ∘ weight + bias     with `gate_first`

    f is silu(z) = z sigmoid(z), or sigmoid. ε is added to the variance.

    Args:
        x: Vectors.
        z: What their gates are made of.
        weight: Factor of each channel. None means 1.
        bias: Added to each channel. None means 0.
        eps: ε, positive and finite, in units of x².
        activation: "silu" or "sigmoid".
        gate_first: Normalize what is gated.

    Returns:
        y: In the dtype of x.

    Raises:
        ValueError: an eps that is not positive and normal in float32; another activation.

    Source: Ba et al., Layer Normalization, arXiv 1607.06450, equation 4 (without its ε and its
        gate, which are those of flash-linear-attention 0.6.0).
    """
