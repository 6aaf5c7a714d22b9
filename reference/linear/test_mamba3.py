"""The hand-computed values below share two tokens, K = 3, V = 1, P = 1, one head and one group:

x1 = 2    B1 = (1, 2, 0)    C1 = (1, 1, 2)    dt1 = 1/2    λ1 = 1/2    θ1 = π      D = 10
x2 = 3    B2 = (0, 4, 1)    C2 = (2, 4, 0)    dt2 = 1      λ2 = 1/4    θ2 = π/2
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Form, both_forms_of, draw, rows

both_forms = both_forms_of(reference.mamba3)


def _draw(batch: int = 2, pairs: int = 2) -> dict[str, Tensor]:
    """Seven tokens of 4 heads in 2 groups, with 5 keys and 3 values, and their state."""
    return {
        "x": draw(0, batch, 7, 4, 3),
        "dt": torch.nn.functional.softplus(draw(1, batch, 7, 4)),
        "g": -draw(2, batch, 7, 4).abs(),
        "B": draw(3, batch, 7, 2, 5),
        "C": draw(4, batch, 7, 2, 5),
        "lam": torch.sigmoid(draw(5, batch, 7, 4)),
        "theta": 3 * draw(6, batch, 7, 4, pairs),
        "D": draw(7, 4),
        "initial_state": draw(8, batch, 4, 6, 4),
    }


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    y, final_state = form(
        rows([2], [3])[None, :, None],
        rows(1 / 2, 1)[None, :, None],
        rows(1 / 2, 1 / 4).log()[None, :, None],
        rows([1, 2, 0], [0, 4, 1])[None, :, None],
        rows([1, 1, 2], [2, 4, 0])[None, :, None],
        rows(1 / 2, 1 / 4)[None, :, None],
        rows([math.pi], [math.pi / 2])[None, :, None],
        rows(10),
        initial_state=rows([4, 0], [8, 8], [16, 4], [1, 7])[None, None],
        output_final_state=True,
    )
    # Each token turns (a, b, c) to (b, -a, c). The decays are 1/2 and 1/4:
    # h0 = (4, 8, 16), B0 x0 / 4 = (0, 2, 1):    (10, -4, 17) / 2 = (5, -2, 8.5)
    # h1 = that + B1 x1 / 4 = (5.5, -1, 8.5),    y1 = 21.5 + 10 x1
    # h1 + 3/4 B1 x1 = (7, 2, 8.5):              (2, -7, 8.5) / 4 = (0.5, -1.75, 2.125)
    # h2 = that + B2 x2 / 4 = (0.5, 1.25, 2.875), y2 = 6 + 10 x2
    torch.testing.assert_close(y[0, :, 0], rows([41.5], [36]), rtol=1e-15, atol=0)
    state = rows([0.5, 0], [1.25, 4], [2.875, 1], [3, 7])
    torch.testing.assert_close(final_state[0, 0], state, rtol=0, atol=4e-15)


@both_forms
@pytest.mark.parametrize("cu_seqlens", [None, torch.tensor([0, 3, 3, 7])], ids=["dense", "packed"])
def test_it_is_mamba2_where_nothing_turns_and_a_token_has_all_of_its_step(
    form: Form, cu_seqlens: Tensor | None
) -> None:
    given, A = _draw(2 if cu_seqlens is None else 1), -draw(9, 4).exp()
    given["g"], given["lam"] = given["dt"] * A, torch.ones_like(given["lam"])
    given["theta"] = torch.zeros_like(given["theta"])
    given["initial_state"] = draw(8, 2 if cu_seqlens is None else 3, 4, 6, 4)
    options: dict[str, Any] = {"output_final_state": True, "cu_seqlens": cu_seqlens}
    y, state = form(**given, **options)
    x, dt, B, C, D, initial = (given[n] for n in ("x", "dt", "B", "C", "D", "initial_state"))
    expected, final = reference.mamba2(
        x, dt, A, B, C, D, initial_state=initial[..., :-1, :-1], **options
    )
    torch.testing.assert_close(y, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(state[..., :-1, :-1], final, rtol=1e-13, atol=1e-13)


@both_forms
def test_a_pair_of_channels_is_a_complex_number(form: Form) -> None:
    given = _draw()
    y, state = form(**given, output_final_state=True)
    B, C = (torch.complex(given[n][..., 0:4:2], given[n][..., 1:4:2]) for n in "BC")
    B, C = (z.repeat_interleave(2, dim=2) for z in (B, C))
    rest_B, rest_C = (given[n][..., 4].repeat_interleave(2, dim=2) for n in "BC")
    S = given["initial_state"]
    pairs = torch.complex(S[..., 0:4:2, :], S[..., 1:4:2, :])
    h, before, rest, rest_before = pairs[..., :-1], pairs[..., -1], S[..., 4, :-1], S[..., 4, -1]
    x_before = S[..., -1, :-1]
    for t in range(7):
        x, dt, lam = (given[n][:, t] for n in ("x", "dt", "lam"))
        early, late, decay = (1 - lam) * dt, lam * dt, torch.exp(given["g"][:, t])[..., None]
        turn = torch.exp(-1j * dt[..., None] * given["theta"][:, t])[..., None]
        h = h + (early[..., None] * before)[..., None] * x_before[..., None, :]
        h = decay[..., None] * turn * h
        h = h + (late[..., None] * B[:, t])[..., None] * x[..., None, :]
        rest = decay * (rest + (early * rest_before)[..., None] * x_before)
        rest = rest + (late * rest_B[:, t])[..., None] * x
        read = torch.einsum("bhp,bhpv->bhv", C[:, t].conj(), h).real
        read = read + rest_C[:, t, :, None] * rest + given["D"][:, None] * x
        torch.testing.assert_close(y[:, t], read, rtol=1e-12, atol=1e-12)
        before, rest_before, x_before = B[:, t], rest_B[:, t], x
    torch.testing.assert_close(state[..., 0:4:2, :-1], h.real, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state[..., 1:4:2, :-1], h.imag, rtol=1e-12, atol=1e-12)


@both_forms
def test_libraries_keep_the_same_state_turned_by_the_angles_so_far(form: Form) -> None:
    """S_t = exp(g_t) S_{t-1} + β_t B̃_{t-1} x_{t-1}ᵀ + γ_t B̃_t x_tᵀ, from any first angle."""
    given, angle = _draw(), 9 * draw(9, 2, 4, 2)
    y, final = form(**given, output_final_state=True)
    start = given["initial_state"]
    S, key, x = _turned(start[..., :-1, :-1].mT, angle), start[..., :-1, -1], start[..., -1, :-1]
    key = _turned(key[..., None, :], angle)[..., 0, :]
    for t in range(7):
        decay, dt, lam = torch.exp(given["g"][:, t]), given["dt"][:, t], given["lam"][:, t]
        S = decay[..., None, None] * S
        S = S + ((1 - lam) * dt * decay)[..., None, None] * x[..., None] * key[..., None, :]
        angle = (angle + dt[..., None] * given["theta"][:, t]) % (2 * math.pi)
        key, query = (
            _turned(given[n][:, t].repeat_interleave(2, 1)[..., None, :], angle)[..., 0, :]
            for n in "BC"
        )
        x = given["x"][:, t]
        S = S + (lam * dt)[..., None, None] * x[..., None] * key[..., None, :]
        read = torch.einsum("bhvk,bhk->bhv", S, query) + given["D"][:, None] * x
        torch.testing.assert_close(y[:, t], read, rtol=1e-12, atol=1e-12)
    rested = _turned(S, -angle).mT
    torch.testing.assert_close(final[..., :-1, :-1], rested, rtol=1e-12, atol=1e-12)


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Turn the first pairs of 5 channels `[..., V, 5]` by angles `[..., 2]`, as matrices."""
    cos, sin = torch.cos(angles), torch.sin(angles)
    R = torch.stack([cos, -sin, sin, cos], -1).unflatten(-1, (2, 2))[..., None, :, :, :]
    pairs = R @ x[..., :4].unflatten(-1, (2, 2))[..., None]
    return torch.cat([pairs.flatten(-3), x[..., 4:]], -1)


@both_forms
def test_whole_turns_change_nothing(form: Form) -> None:
    given = _draw()
    given["dt"] = torch.ones_like(given["dt"])
    y, _ = form(**given)
    generator = torch.Generator().manual_seed(0)
    turns = torch.randint(-9, 10, given["theta"].shape, generator=generator)
    given["theta"] = given["theta"] + 2 * math.pi * turns.double()
    torch.testing.assert_close(form(**given)[0], y, rtol=1e-11, atol=1e-11)


@both_forms
def test_more_pairs_than_keys_have_are_refused(form: Form) -> None:
    with pytest.raises(ValueError, match="theta: 3 pairs of channels, expected at most K // 2 = 2"):
        form(**_draw(pairs=3))


@both_forms
def test_a_step_of_zero_decays_and_writes_nothing(form: Form) -> None:
    given = _draw()
    given["dt"] = torch.zeros_like(given["dt"])
    _, state = form(**given, output_final_state=True)
    expected = torch.exp(given["g"].sum(1))[..., None, None] * given["initial_state"]
    torch.testing.assert_close(state[..., :-1, :-1], expected[..., :-1, :-1])
