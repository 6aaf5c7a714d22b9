"""Cyclic flow attention: softmax attention over slots on a ring, which each token turns."""

import math
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from kernels.differentiable import differentiable
from kernels.linear.simple_gla import simple_gla
from kernels.linear.turns import sums_of_turns
from kernels.norm.l2norm import EPS, l2norm
from kernels.primitives.shift import last_tokens
from kernels.recurrence import Options, wrapper


def in_float32(*, q: Tensor, **given: Any) -> tuple[Tensor, Tensor | None]:
    with torch.autocast(q.device.type, enabled=False):
        return by_two_passes(q=q, **given)


def by_two_passes(
    *, q: Tensor, k: Tensor, v: Tensor, delta: Tensor, readout: Tensor, g: Tensor | None,
    beta: Tensor | None, q_norm_weight: Tensor, k_norm_weight: Tensor,
    scale: float | None, initial_state: Tensor | None, cu_seqlens: Tensor | None, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    M = readout.shape[-1]
    if M % 2 == 0:
        raise ValueError(f"readout: {M} slots, expected an odd number")
    dtype = q.dtype
    # Logits and weights stay float32, as in any softmax.
    q, k, v, delta, A = (x.float() for x in (q, k, v, delta, readout))
    g = torch.zeros_like(delta) if g is None else g.float()
    given["cu_seqlens"] = cu_seqlens

    # The ring rests: what a token writes turns by its turns so far, and each read turns back. The
    # state is that of the waves on the ring, each turned by a rotation.
    waves = _waves(M, q.device)
    turns = sums_of_turns(delta, M, cu_seqlens)
    # The sum has checked the boundaries.
    q, k = _normalized(q, q_norm_weight), _normalized(k, k_norm_weight)
    angles = _angles(turns, M)
    written = _turned(waves[0].expand(*turns.shape, M), angles, -1)
    if beta is not None:
        written = beta.float()[..., None] * written
    keys = values = None
    if initial_state is not None:
        at_rest = _by_rows(initial_state.float().mT, waves)
        keys, values = at_rest.split([k.shape[-1], v.shape[-1]], dim=-2)
        values = values.mT
    read, keys = simple_gla(q, k, written, g, scale=scale, initial_state=keys, **given)
    table = _by_rows(A, waves)
    p = torch.softmax(_by_heads(_turned(read, angles, 1), table.mT), dim=-1)
    weights = _turned(_by_heads(p, table), angles, -1)
    o, values = simple_gla(weights, written, v, g, scale=1.0, initial_state=values, **given)
    if keys is None:
        return o.to(dtype), None
    if q.shape[1] == 0:
        final_state = torch.cat([keys.mT, values], dim=-1)
        if initial_state is not None:
            final_state = torch.empty_like(final_state).copy_(initial_state)
        return o.to(dtype), final_state
    (last,), empty = last_tokens((turns,), cu_seqlens)
    at_rest = torch.cat([keys, values.mT], dim=-2)
    turned = _turned(at_rest, _angles(last, M)[:, :, None], 1)
    final_state = _by_rows(turned, waves.mT).mT
    if initial_state is not None:
        # Not rounded where no token turned it.
        final_state = torch.where(empty[:, None, None, None], initial_state.float(), final_state)
    return o.to(dtype), final_state


def _product_backward(x: Tensor, w: Tensor, d0: Tensor) -> list[Tensor | None]:
    return [_of_matrices(d0, w.mT), _of_matrices(x.mT, d0)]


def _of_matrices(x: Tensor, w: Tensor) -> Tensor:
    # The bits of a product depend on strides, which compiled code may change.
    return x.contiguous() @ w.contiguous()


_product = differentiable(
    "cyfa_product",
    lambda x, w: [_of_matrices(x, w)],
    _product_backward,
    lambda given: [((*given["x"].shape[:2], given["w"].shape[2]), torch.float32)],
    outputs=1,
    takes={"x": "Tensor", "w": "Tensor"},
)


def _by_rows(x: Tensor, w: Tensor) -> Tensor:
    """`[..., M]` times `[M, M]`."""
    return _product(x.reshape(1, -1, x.shape[-1]), w[None]).reshape(x.shape)


def _by_heads(x: Tensor, w: Tensor) -> Tensor:
    """`[B, T, H, M]` times `[H, M, M]`."""
    rows = _product(x.flatten(0, 1).transpose(0, 1), w)
    return rows.transpose(0, 1).unflatten(0, x.shape[:2])


def _normalized(x: Tensor, weight: Tensor) -> Tensor:
    """w ∘ x / sqrt(mean(x²) + ε)."""
    K = x.shape[-1]
    return math.sqrt(K) * weight.float() * l2norm(x, eps=K * EPS)


def _waves(M: int, device: torch.device) -> Tensor:
    """The waves on a ring of M slots `[M, M]`, orthonormal columns: cosines, then sines."""
    r = torch.arange(M, dtype=torch.float64, device=device)
    f = r[: M // 2 + 1]
    angles = 2 * math.pi / M * (r[:, None] * f % M)
    waves = torch.cat([torch.cos(angles), torch.sin(angles[:, 1:])], dim=-1)
    twice = 2 - (torch.cat([f, f[1:]]) == 0).double()
    return (waves * (twice / M).sqrt()).float()


def _angles(turns: Tensor, M: int) -> Tensor:
    """The angle of each wave after these turns `[..., (M + 1) / 2]`, in [0, 2π)."""
    f = torch.arange(M // 2 + 1, dtype=torch.float64, device=turns.device)
    # A wave turns up to M / 2 times as fast as the ring; float32 would lose as many digits.
    return (2 * math.pi / M * (turns.double()[..., None] * f % M)).float()


def _turned(x: Tensor, angles: Tensor, sign: int) -> Tensor:
    """Turn what is on the ring, given by its waves, by these angles forwards (1) or back (-1)."""
    cosines, sines = x.split([angles.shape[-1], angles.shape[-1] - 1], dim=-1)
    sines = pad(sines, (1, 0))
    cos, sin = torch.cos(angles), sign * torch.sin(angles)
    return torch.cat([cosines * cos - sines * sin, (cosines * sin + sines * cos)[..., 1:]], -1)


@wrapper(in_float32, "simple_gla", raises=("an even number of slots",))
def cyfa(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    delta: Float[Tensor, "B T H"],
    readout: Float[Tensor, "H M M"],
    q_norm_weight: Float[Tensor, "K"],
    k_norm_weight: Float[Tensor, "K"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent"] = "auto",
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H M K+V"] | None]:
    """Cyclic flow attention, `reference.cyfa`: `simple_gla` over the keys of the waves on the ring,
    a softmax of what the readout reads, and `simple_gla` over their values, in float32. M is odd.
    """
