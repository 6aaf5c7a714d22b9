"""Mamba-3: a selective state space that turns, and whose steps are trapezoids."""

from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from reference.decay import decays
from reference.recurrence import Run, StateOptions, recurrence


def recurrent(
    x: Tensor, dt: Tensor, g: Tensor, B: Tensor, C: Tensor, lam: Tensor, theta: Tensor,
    D: Tensor | None, S: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    h, key, value, y = S[..., :-1, :-1], S[..., :-1, -1], S[..., -1, :-1], []
    alpha, early, late = torch.exp(g), (1 - lam) * dt, lam * dt
    turns = dt[..., None] * theta
    for t in range(x.shape[1]):
        h = h + torch.einsum("bh,bhk,bhv->bhkv", early[:, t], key, value)
        h = alpha[:, t, :, None, None] * _turned(h.mT, -turns[:, t, :, None]).mT
        key, value = B[:, t], x[:, t]
        h = h + torch.einsum("bh,bhk,bhv->bhkv", late[:, t], key, value)
        read = torch.einsum("bhk,bhkv->bhv", C[:, t], h)
        y.append(read if D is None else read + D[:, None] * value)
    return torch.stack(y, dim=1) if y else x, _state(h, key, value, S)


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """R(φ) x: turn the pairs of neighbours among the first 2 P channels by P angles."""
    pairs, rest = x.split([2 * angles.shape[-1], x.shape[-1] - 2 * angles.shape[-1]], dim=-1)
    a, b, cos, sin = pairs[..., ::2], pairs[..., 1::2], torch.cos(angles), torch.sin(angles)
    turned = torch.stack([cos * a - sin * b, sin * a + cos * b], dim=-1)
    return torch.cat([turned.flatten(-2), rest], dim=-1)


def _state(h: Tensor, key: Tensor, value: Tensor, S: Tensor) -> Tensor:
    last = torch.cat([value[..., None, :], S[..., -1:, -1:]], dim=-1)
    return torch.cat([torch.cat([h, key[..., None]], dim=-1), last], dim=-2)


def rotary(
    x: Tensor, dt: Tensor, g: Tensor, B: Tensor, C: Tensor, lam: Tensor, theta: Tensor,
    D: Tensor | None, S: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All pairs of tokens at once: B and C turn, and the state rests.

        φ_i  = Σ_{t <= i} dt_t θ_t,    B̃_i = R(φ_i) B_i,    C̃_i = R(φ_i) C_i
        L_ij = exp Σ_{j < t <= i} g_t                                   for j <= i
        w_ij = λ_j dt_j [1 <= j <= i] + (1 - λ_{j+1}) dt_{j+1} [0 <= j < i]
        y_i  = Σ_j L_ij w_ij (C̃_i · B̃_j) x_j + L_i0 h_0ᵀ C̃_i + D x_i
        h_T  = R(-φ_T) (Σ_j L_Tj w_Tj B̃_j x_jᵀ + L_T0 h_0)

    where token 0 is the one before the first, of which the state has B_0 and x_0.

    Source: Lahoti et al., arXiv 2603.15569 (the mask of a trapezoid, and the rotation as a rotary
        embedding).
    """
    if x.shape[1] == 0:
        return x, S
    T, angles = x.shape[1], (dt[..., None] * theta).cumsum(1)
    h, key, value = S[..., :-1, :-1], S[..., :-1, -1], S[..., -1, :-1]
    keys = torch.cat([key[:, None], _turned(B, angles)], dim=1)
    values, queries = torch.cat([value[:, None], x], dim=1), _turned(C, angles)

    from_start, between = decays(g)
    L = torch.cat([from_start[:, :, None], between], dim=2)
    i, j = (torch.arange(n, T + 1, device=x.device) for n in (1, 0))
    own = pad(lam * dt, (0, 0, 1, 0))[:, None] * (j <= i[:, None])[..., None]
    next_one = pad((1 - lam) * dt, (0, 0, 0, 1))[:, None] * (j < i[:, None])[..., None]
    weights = L * (own + next_one)

    pairs = torch.einsum("bihk,bjhk->bijh", queries, keys)
    y = torch.einsum("bijh,bjhv->bihv", weights * pairs, values)
    y = y + from_start[..., None] * torch.einsum("bihk,bhkv->bihv", queries, h)
    if D is not None:
        y = y + D[:, None] * x
    written = torch.einsum("bjhk,bjhv->bhkv", weights[:, -1, ..., None] * keys, values)
    h = written + from_start[:, -1, :, None, None] * h
    h = _turned(h.mT, -angles[:, -1, :, None]).mT
    return y, _state(h, B[:, -1], x[:, -1], S)


def _with_pairs(run: Run, **arguments: Any) -> tuple[Tensor, Tensor]:
    K, P = arguments["B"].shape[-1], arguments["theta"].shape[-1]
    if 2 * P > K:
        raise ValueError(f"theta: {P} pairs of channels, expected at most K // 2 = {K // 2}")
    return run(**arguments)


@recurrence(
    recurrent,
    rotary,
    around=_with_pairs,
    same_dtype=("x", "B", "C"),
    groups="groups",
    outputs=("y", "final_state"),
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
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K+1 V+1"] | None]:
    """The state space of Mamba-3 (with one input and one output), as a recurrence over tokens.

        h_t = exp(g_t) R(-dt_t θ_t) (h_{t-1} + (1 - λ_t) dt_t B_{t-1} x_{t-1}ᵀ) + λ_t dt_t B_t x_tᵀ
        y_t = h_tᵀ C_t + D x_t              (read after write)

    where R(φ) turns channels 2i and 2i+1 of the keys by φ_i, for i < P, and leaves the others:

        R(φ) (a, b) = (a cos φ - b sin φ, a sin φ + b cos φ)

    So a step is a trapezoid, of which the token itself has the share λ_t, and the one before the
    rest. With λ = 1 and θ = 0 it is `mamba2`. Head h reads group h // (H / G) of B and C.

    The state is h_T, and of the last token B_T and x_T, as the matrix (h B; xᵀ ·), of which the
    last number is handed on unread. Libraries keep R(φ) h, R(φ) B, x and the angles φ = Σ dt θ mod
    2π, of which φ = 0 is one choice: without φ no result jumps where an angle passes 2π.

    Stable for g <= 0. Angles may be of any size: they matter modulo 2π.

    Args:
        x: Inputs.
        dt: Step of each token: any bias is added and softplus taken before. Meant to be >= 0.
        g: Natural logarithm of the decay, dt A in the model, meant to be <= 0, -inf included.
        B: Input projection of each token, the key of a write, with its bias.
        C: Output projection of each token, the query of a read, with its bias.
        lam: Share of the token itself in its step, λ: the sigmoid of what the network computes.
            Meant to be in [0, 1].
        theta: How fast each pair of channels turns, θ: π tanh of what the network computes. P is 0
            to K // 2.
        D: Weight of the skip connection. None means 0.
        initial_state: h, B and x before the first token. None means zero.

    Raises:
        ValueError: more than K // 2 pairs.

    Source: Lahoti et al., Mamba-3, arXiv 2603.15569 (the trapezoid, and the complex state as a
        rotary embedding). The direction of a turn, and which channels are a pair, are those of the
        kernel `mamba3_siso_combined` of mamba_ssm.
    """
