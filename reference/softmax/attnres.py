"""Attention residuals: attention over the depth of a network."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from reference.norm.l2norm import check_eps
from reference.op import Form, op
from reference.scale import resolve_scale


def definition(
    x: Tensor, query: Tensor, weight: Tensor, output_weight: Tensor | None, scale: float, eps: float
) -> tuple[Tensor, Tensor]:
    s = scale * torch.einsum("btld,d->btl", _rms_norm(x, eps) * weight, query)
    p = torch.softmax(s, -1)
    o = torch.einsum("btl,btld->btd", p, x)
    if output_weight is not None:
        o = _rms_norm(o, eps) * output_weight
    return o, p


def _rms_norm(x: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def running(
    x: Tensor, query: Tensor, weight: Tensor, output_weight: Tensor | None, scale: float, eps: float
) -> tuple[Tensor, Tensor]:
    """One source after another, with a running maximum and normalizer.

    The root is a length, of a vector with one more element of sqrt(D ε):

        mean(x²) + ε = |(x, sqrt(D ε))|² / D
    """
    B, T, L, D = x.shape

    def norm(x: Tensor) -> Tensor:
        longer = torch.nn.functional.pad(x, (0, 1), value=math.sqrt(D * eps))
        length: Tensor = torch.linalg.vector_norm(longer, dim=-1, keepdim=True)
        return math.sqrt(D) * x / length

    m = x.new_full((B, T), -math.inf)
    l, o = torch.zeros_like(m), torch.zeros_like(x[:, :, 0])
    logits = []
    for n in range(L):
        s = scale * (norm(x[:, :, n]) @ (weight * query))
        new_m = torch.maximum(m, s.detach())
        shrink, share = torch.exp(m - new_m), torch.exp(s - new_m)
        l, o = shrink * l + share, shrink[..., None] * o + share[..., None] * x[:, :, n]
        m = new_m
        logits.append(s)
    p = torch.exp(torch.stack(logits, -1) - (m + torch.log(l))[..., None])
    o = o / l[..., None]
    return (o if output_weight is None else norm(o) * output_weight), p


def _run(
    form: Form, sizes: dict[str, int], x: Tensor, query: Tensor, weight: Tensor,
    output_weight: Tensor | None, scale: float | None, eps: float, return_weights: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    check_eps(eps)
    if sizes["L"] == 0:
        raise ValueError("x: no sources (L = 0), expected at least one")
    given = [t for t in (x, query, weight, output_weight) if t is not None]
    dtype = given[0].dtype
    for each in given:
        dtype = torch.promote_types(dtype, each.dtype)
    last = None if output_weight is None else output_weight.to(dtype)
    scale = resolve_scale(scale, sizes["D"])
    o, p = form(x.to(dtype), query.to(dtype), weight.to(dtype), last, scale, eps)
    return o.to(x.dtype), p if return_weights else None


@op(definition, running, run=_run, outputs=("o", "weights"))
def attnres(
    x: Float[Tensor, "B T L D"],
    query: Float[Tensor, "D"],
    weight: Float[Tensor, "D"],
    *,
    output_weight: Float[Tensor, "D"] | None = None,
    scale: float | None = 1.0,
    eps: float = 1e-6,
    return_weights: bool = False,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T L"] | None]:
    """Mix the outputs of earlier layers by a softmax over depth.

        rms(y) = y / sqrt(mean_d(y_d²) + ε)
        p_l    = softmax_l(scale · query · (weight ∘ rms(x_l)))
        o      = Σ_l p_l x_l
        o      = output_weight ∘ rms(o)         if there is one

    Args:
        x: Outputs of L sources for each token.
        query: The query of this layer, learned.
        weight: Weight of the norm of the sources, by channel.
        output_weight: Weight of a norm of the result, by channel. None means no such norm.
        scale: Factor of the logits. None and -1 mean `D ** -0.5`, any other finite number itself.
        eps: ε, positive and finite, in units of x².
        return_weights: Return p as well.

    Returns:
        o: In the dtype of x.
        weights: p, in the promoted dtype of the inputs; None unless `return_weights`.

    Raises:
        ValueError: no sources; a scale that is NaN or infinite; an eps that is not positive
            and normal in float32.

    Source: Attention Residuals, arXiv 2603.15031.
    """
