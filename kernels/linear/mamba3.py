"""Mamba-3: a selective state space that turns, and whose steps are trapezoids."""

import math
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.linear.simple_gla import simple_gla
from kernels.linear.turns import sums_of_turns
from kernels.primitives.groups import of_each_head
from kernels.primitives.shift import last_tokens, of_the_token_before
from kernels.recurrence import StateOptions, compute, wrapper


def one_token_late(
    *, x: Tensor, dt: Tensor, g: Tensor, B: Tensor, C: Tensor, lam: Tensor, theta: Tensor,
    D: Tensor | None, initial_state: Tensor | None, output_final_state: bool,
    cu_seqlens: Tensor | None, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    K, P = B.shape[-1], theta.shape[-1]
    if 2 * P > K:
        raise ValueError(f"theta: {P} pairs of channels, expected at most K // 2 = {K // 2}")
    dtype, heads = x.dtype, x.shape[2]
    x, dt, g, B, C, lam, theta = (z.float() for z in (x, dt, g, B, C, lam, theta))
    start = initial_state
    if start is None:
        N = len(x) if cu_seqlens is None else len(cu_seqlens) - 1
        start = x.new_zeros(N, heads, K + 1, x.shape[-1] + 1)
    B, C = of_each_head(B, heads), of_each_head(C, heads)
    # The state rests; what is written, and what reads it, turns by all angles so far.
    turns = (dt[..., None] * theta).flatten(2)
    angles = sums_of_turns(turns, 2 * math.pi, cu_seqlens).view(theta.shape)
    key, query = _turned(B, angles), _turned(C, angles)

    # A token writes with its own step, and again with the next one's. One token late, both are one
    # write, and no result depends on later tokens.
    early, late = (1 - lam) * dt, lam * dt
    written = (of_the_token_before(late, cu_seqlens) + early)[..., None]
    y, before = compute(
        simple_gla.__name__,
        q=torch.exp(g)[..., None] * query,
        k=of_the_token_before(key, cu_seqlens, start[..., :-1, -1]),
        v=written * of_the_token_before(x, cu_seqlens, start[..., -1, :-1]),
        g=of_the_token_before(g, cu_seqlens),
        scale=1.0,
        reverse=False,
        within=dtype,
        initial_state=None if initial_state is None else start[..., :-1, :-1],
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        **given,
    )
    y = y.float() + (late * (query * key).sum(-1))[..., None] * x
    if D is not None:
        y = y + D.float()[:, None] * x
    y = y.to(dtype)
    if before is None:
        return y, None
    if x.shape[1] == 0:
        return y, start.clone()

    tokens = (x, g, late, B, key, angles)
    (x, g, late, B, key, angles), empty = last_tokens(tokens, cu_seqlens)
    h = torch.exp(g)[..., None, None] * before
    h = h + late[..., None, None] * key[..., None] * x[..., None, :]
    h = _turned(h.mT, -angles[:, :, None]).mT
    last = torch.cat([x[..., None, :], start[..., -1:, -1:]], dim=-1)
    state = torch.cat([torch.cat([h, B[..., None]], dim=-1), last], dim=-2)
    return y, torch.where(empty[:, None, None, None], start, state)


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Turn the pairs of neighbours among the first 2 P channels by P angles."""
    pairs, rest = x.split([2 * angles.shape[-1], x.shape[-1] - 2 * angles.shape[-1]], dim=-1)
    a, b, cos, sin = pairs[..., ::2], pairs[..., 1::2], torch.cos(angles), torch.sin(angles)
    turned = torch.stack([cos * a - sin * b, sin * a + cos * b], dim=-1)
    return torch.cat([turned.flatten(-2), rest], dim=-1)


@wrapper(
    one_token_late,
    "simple_gla",
    same_dtype=("x", "B", "C"),
    outputs=("y", "final_state"),
    raises=("more than K // 2 pairs",),
)
def mamba3(
    x: Float[Tensor, "B T H V"],
    dt: Float[Tensor, "B T H"],
    g: Float[Tensor, "B T H"],
    B: Float[Tensor, "B T G K"],
    C: Float[Tensor, "B T G K"],
    lam: Float[Tensor, "B T H"],
    theta: Float[Tensor, "B T H P"],
    D: Float[Tensor, "H"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent", "parallel"] = "auto",
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K+1 V+1"] | None]:
    """The state space of Mamba-3, `reference.mamba3`: `simple_gla` one token late, with keys and
    queries that turn by the angles so far, plus what a token reads of itself.

    Angles are summed modulo a whole turn, and without rounding: however long a sequence is, its
    angles have the errors of what each token turns by, and no others.
    """
