"""Feature maps: what linear attention reads in the place of queries and keys."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from reference.op import Form, op

KINDS = ("elu", "relu", "hedgehog", "dpfp", "taylor")


def features(x: Tensor, kind: str, nu: int) -> Tensor:
    D = x.shape[-1]
    if kind == "elu":
        return torch.nn.functional.elu(x) + 1
    if kind == "relu":
        return torch.relu(x)
    both = torch.cat([x, -x], dim=-1)
    if kind == "hedgehog":
        return torch.softmax(both, dim=-1)
    if kind == "dpfp":
        r = torch.relu(both)
        return torch.cat([r * r.roll(i, dims=-1) for i in range(1, nu + 1)], dim=-1)
    squares = (x[..., :, None] * x[..., None, :]).flatten(-2) / math.sqrt(2 * D)
    return torch.cat([torch.ones_like(x[..., :1]), x / D**0.25, squares], dim=-1)


def elements(x: Tensor, kind: str, nu: int) -> Tensor:
    """The elements of an outer product, and exponentials of logarithms.

    elu        exp(min(x, 0)) + max(x, 0)
    hedgehog   exp(±x_d - log Σ_e 2 cosh x_e),    log 2 cosh x = |x| + log(1 + exp(-2 |x|))
    dpfp       (r rᵀ)_{j, j - i mod 2D}
    taylor     u_0 u_0, u_0 u_d and u_c u_d / sqrt 2 of u = (1, x / D^(1/4))
    """
    D = x.shape[-1]
    above = x * (x > 0)
    if kind == "elu":
        return torch.exp(x - above) + above
    if kind == "relu":
        return above
    if kind == "hedgehog":
        cosh = x.abs() + torch.log1p(torch.exp(-2 * x.abs()))
        both = torch.stack([x, -x], dim=-2) - torch.logsumexp(cosh, -1)[..., None, None]
        return torch.exp(both).flatten(-2)
    if kind == "dpfp":
        # Not above - x, whose gradient at 0 is -1.
        r = torch.cat([above, -x * (x < 0)], dim=-1)
        j, i = torch.arange(2 * D, device=x.device), torch.arange(nu, device=x.device)[:, None] + 1
        return (r[..., :, None] * r[..., None, :])[..., j, (j - i) % (2 * D)].flatten(-2)
    u = torch.nn.functional.pad(x / D**0.25, (1, 0), value=1.0)
    products = u[..., :, None] * u[..., None, :]
    return torch.cat([products[..., 0, :], products[..., 1:, 1:].flatten(-2) / 2**0.5], dim=-1)


def _run(form: Form, sizes: dict[str, int], x: Tensor, kind: str, nu: int) -> Tensor:
    if kind not in KINDS:
        raise ValueError(f"kind: {kind!r}, expected one of {', '.join(KINDS)}")
    if nu < 1:
        raise ValueError(f"nu: {nu}, expected at least 1")
    y: Tensor = form(x, kind, nu)
    return y


@op(features, elements, run=_run, outputs=("y",))
def feature_map(x: Float[Tensor, "B T H D"], kind: str, *, nu: int = 1) -> Float[Tensor, "B T H F"]:
    """Features φ(x) of queries or keys: linear attention weighs a pair by φ(q) · φ(k).

        elu        φ_d = elu(x_d) + 1                                       F = D
        relu       φ_d = max(x_d, 0)                                        F = D
        hedgehog   φ = softmax of (x, -x), over all 2 D                     F = 2 D
        dpfp       φ_{2D(i-1) + j} = r_j r_{j - i mod 2D},  i = 1 ... ν     F = 2 D ν
                   r = max((x, -x), 0)
        taylor     φ = (1, x / D^(1/4), x xᵀ / sqrt(2 D))                   F = 1 + D + D²

    No feature but those of `taylor` is negative. Those have the weight 1 + s + s²/2 with
    s = q · k / sqrt D, which is that of `based`. Hedgehog's trained layer comes before, and so does
    that of T2R, whose map is `relu`. DPFP with r_{j + i} has the same features in another order,
    and so the same weights.

    Args:
        x: Queries or keys.
        kind: "elu", "relu", "hedgehog", "dpfp" or "taylor".
        nu: ν >= 1 of `dpfp`; other kinds do not read it.

    Returns:
        y: In the dtype of x.

    Raises:
        ValueError: another kind, or a nu below 1.

    Source: Katharopoulos et al., arXiv 2006.16236, equation 7 (elu); Kasai et al., arXiv
        2103.13076, section 2.2 (relu); Zhang et al., arXiv 2402.04347, section 4 (hedgehog);
        Schlag et al., arXiv 2102.11174, section 5.3 (dpfp); Arora et al., arXiv 2402.18668,
        section 3.1 (taylor).
    """
