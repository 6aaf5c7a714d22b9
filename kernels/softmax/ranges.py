"""Cotangents in float16, divided so that the gradients of logits stay in its range.

The backward kernels of attention store `dS = P ∘ (dP - delta)` in the dtype of the keys, for a
product with them. With P at most 1, `dP = do · v` and `delta = do · o - dlse`,

    |dS| <= 2 · max ‖do‖ · max ‖v‖ + max |dlse|

times the factor of the head, if there is one. dS is linear in do and dlse. So these are divided by
a power of two for each sequence, 1 where the bound is below 2^15, and the gradients are multiplied
by it: no bit of a number changes that is not subnormal on the way.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Powers(NamedTuple):
    """Powers of two by which the cotangents of each query, and what reaches each key, are divided.

    `[B, T]`, or `[B, 1]` in a dense batch. float32.
    """

    of_queries: Tensor
    of_keys: Tensor

    def divided(
        self, do: Float[Tensor, "B T H V"], dlse: Float[Tensor, "B H T"]
    ) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H T"]]:
        smaller = torch.empty_like(do, dtype=torch.float16)
        torch.mul(do, 1 / self.of_queries[..., None, None], out=smaller)
        return smaller, dlse / self.of_queries[:, None]

    def restore(self, dq: Tensor, dk: Tensor, dv: Tensor) -> None:
        """Multiply gradients `[B, T, ...]` in place."""
        dq.mul_(self.of_queries[..., None, None])
        for gradient in (dk, dv):
            gradient.mul_(self.of_keys[..., None, None])


def powers(
    do: Float[Tensor, "B T_q H V"],
    dlse: Float[Tensor, "B H T_q"],
    v: Float[Tensor, "B T_k G V"],
    cu_seqlens: Int[Tensor, " N+1"] | None,
    cu_seqlens_k: Int[Tensor, " N+1"] | None,
    factors: Float[Tensor, " H"] | None = None,
) -> Powers | None:
    """Return what to divide by; None for values in a dtype of float32's range, and for no heads."""
    if v.dtype != torch.float16 or do.shape[2] == 0:
        return None
    of_queries, of_keys = (_sequences(n, x) for n, x in ((cu_seqlens, do), (cu_seqlens_k, v)))
    count = do.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    lengths, sizes = _lengths(do), dlse.abs().mT
    if factors is not None:
        lengths, sizes = (x * factors.abs() for x in (lengths, sizes))
    far, sums, high = (
        _largest(x.amax(2), where, count)
        for x, where in ((lengths, of_queries), (sizes, of_queries), (_lengths(v), of_keys))
    )
    of_each = power(2 * far * high + sums)
    return Powers(*(of_each[where] for where in (of_queries, of_keys)))


def power(bound: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the least power of two, at least 1, that divides bounds to at most 2^15."""
    # A bound that is NaN or above float32's range counts as 2^127.
    bound = bound.nan_to_num(2.0**127, 2.0**127).clamp(max=2.0**127)
    exponent = (torch.frexp(bound)[1] - 15).clamp(0, 126)
    # The bits of a power of two: exp2 may be off by an ulp.
    return (exponent + 127).int().bitwise_left_shift(23).view(torch.float32)


def _lengths(x: Float[Tensor, "B T H V"]) -> Float[Tensor, "B T H"]:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)


def _sequences(cu_seqlens: Int[Tensor, " N+1"] | None, x: Tensor) -> Int[Tensor, "B T"]:
    """The number of the sequence of each token; `[B, 1]` in a dense batch."""
    if cu_seqlens is None:
        return torch.arange(x.shape[0], device=x.device)[:, None]
    tokens = torch.arange(x.shape[1], device=x.device)
    return torch.bucketize(tokens, cu_seqlens[1:], right=True)[None]


def _largest(x: Float[Tensor, "B T"], where: Int[Tensor, "B T"], count: int) -> Float[Tensor, " N"]:
    """The largest finite number of each sequence, 0 of one without tokens."""
    each = x.new_zeros(count, dtype=torch.float32)
    x = x.float().nan_to_num(0.0, 0.0, 0.0)
    return each.scatter_reduce(0, where.expand(x.shape).flatten(), x.flatten(), "amax")
