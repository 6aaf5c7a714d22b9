"""Merge the attention over two sets of keys, from the outputs and the LSEs."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from reference.op import Form, op


def weighted(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    parts = torch.stack([lse_a, lse_b])
    nothing = parts == -math.inf
    # An empty part has no logarithm to differentiate: it is replaced before the exponential.
    top = torch.where(nothing.all(0), 0.0, parts.amax(0)).detach()
    e = torch.where(nothing, 0.0, torch.exp(torch.where(nothing, top, parts) - top))
    total = e.sum(0)
    total = torch.where(nothing.all(0), 1.0, total)
    lse = torch.where(nothing.all(0), -math.inf, top + torch.log(total))
    w_a, w_b = (e / total).transpose(-1, -2)[..., None]
    return _weighed(w_a, o_a) + _weighed(w_b, o_b), lse


def logistic(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The weights are a logistic function of the difference.

        x   = lse_a - lse_b
        lse = lse_b + log (1 + exp(x))
        o   = σ(x) o_a + σ(-x) o_b

    Source: Bishop, Pattern Recognition and Machine Learning, section 4.2 (softmax of two classes).
    """
    a, b = lse_a != -math.inf, lse_b != -math.inf
    x = torch.where(a & b, lse_a - torch.where(b, lse_b, 0.0), 0.0)
    # log (1 + exp(x)) = -log σ(-x), which does not overflow and has its gradient at x = 0, too.
    both = torch.where(b, lse_b, 0.0) - torch.nn.functional.logsigmoid(-x)
    lse = torch.where(a & b, both, torch.where(a, lse_a, torch.where(b, lse_b, -math.inf)))
    w_a = torch.where(b, torch.where(a, torch.sigmoid(x), 0.0), a.to(x.dtype))
    w_b = torch.where(a, torch.where(b, torch.sigmoid(-x), 0.0), b.to(x.dtype))
    w_a, w_b = (w.transpose(1, 2)[..., None] for w in (w_a, w_b))
    return _weighed(w_a, o_a) + _weighed(w_b, o_b), lse


def _weighed(weight: Tensor, o: Tensor) -> Tensor:
    """Return `weight · o`; 0 without gradients where the weight is 0, whatever o is there."""
    return weight * torch.where(weight == 0, 0.0, o)


def run(
    form: Form, sizes: object, o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor, *,
    base2: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Convert the LSEs to natural logarithms and back."""
    unit = math.log(2) if base2 else 1.0
    o, lse = form(o_a, lse_a * unit, o_b, lse_b * unit)
    return o.to(o_a.dtype), lse / unit


@op(weighted, logistic, run=run, same_dtype=("o_a", "o_b"), outputs=("o", "lse"))
def merge_attention(
    o_a: Float[Tensor, "B T H V"],
    lse_a: Float[Tensor, "B H T"],
    o_b: Float[Tensor, "B T H V"],
    lse_b: Float[Tensor, "B H T"],
    *,
    base2: bool = False,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H T"]]:
    """Merge the attention of the same queries over two disjoint sets of keys.

        lse = log (exp(lse_a) + exp(lse_b))
        o   = exp(lse_a - lse) o_a + exp(lse_b - lse) o_b

    The result is the attention over the union of both. The operation is commutative and
    associative. A part without keys, of lse = -inf, changes nothing, whatever its o; two of them
    give o = 0 and lse = -inf, and gradients 0.

    Args:
        o_a: Outputs over the first set of keys.
        lse_a: Logarithms of the softmax's denominators over the first set.
        o_b: Outputs over the second set.
        lse_b: Logarithms of the denominators over the second set.
        base2: The LSEs, given and returned, are base-2 logarithms instead of natural ones.

    Returns:
        o: In the dtype of o_a.
        lse: In the promoted dtype of lse_a and lse_b.

    Source: Milakov and Gimelshein, arXiv 1805.02867, section 3.1 (the operation on pairs); Juravsky
        et al., Hydragen, arXiv 2402.05099, section 3.2 (with outputs).
    """
