import math
from typing import Any

import pytest
import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows, unit

both_forms = both_forms_of(reference.precond_gated_delta_rule)
both_forms_of_kda = both_forms_of(reference.precond_kda)


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    e = math.e
    o, final_state = form(
        rows([1, 1], [2, 0])[None, :, None],
        rows([1, 0], [2, 1])[None, :, None],
        rows([4], [8])[None, :, None],
        rows(1 / 2, 1)[None, :, None].log(),
        rows(1 / 2, 1)[None, :, None],
        rows(1 / 2, 1 / 4)[None, :, None].log(),
        rows(1, (e**3 - 1e-6) / 4 - 1 / 4)[None, :, None],
        rows(0),
        scale=1.0,
        initial_state=rows([2, 0, 2], [3, 0, 0])[None, None, :, [0, 2]],
        output_final_state=True,
    )
    # Energies: (1 + 1, 0). k' = 1.5^(-r/(1+r)) with r = log 2.
    r = math.log(2 + 1e-6)
    first = 1.5 ** (-r / (1 + r))
    # S' = (1, 3/2), the error is 3, half of it goes under k' = (first, 0).
    s = 1 + 3 / 2 * first
    # Token 2 finds 2 s + 3/2. Energies: e^3 - 1 - 1e-6 + 1/2, and half of that ... of each channel.
    a = (e**3 - 1e-6) / 4 - 1 / 4
    energy = [2 / 4 + 4 * a, a]
    powers = []
    for x in energy:
        r = math.log(x + 1e-6)
        powers.append(1.5 ** (-r / (1 + abs(r))))
    u = 8 - 2 * s - 3 / 2
    state = rows([s + 2 * powers[0] * u, energy[0]], [3 / 2 + powers[1] * u, energy[1]])
    torch.testing.assert_close(o[0, :, 0], rows([s + 3 / 2], [2 * state[0, 0].item()]))
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-14, atol=0)


@both_forms
def test_energy_at_the_center_leaves_the_gated_delta_rule(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), unit(draw(1, 2, 7, 3, 5)), draw(2, 2, 7, 3, 2)
    g, beta = -draw(3, 2, 7, 3).abs(), torch.sigmoid(draw(4, 2, 7, 3))
    S = draw(5, 2, 3, 5, 2)
    nothing = torch.zeros_like(beta)
    center = torch.full((3,), math.log(1 + 1e-6), dtype=torch.float64)
    state = torch.cat([S, torch.ones_like(S[..., :1])], -1)
    o, _ = form(q, k, v, g, beta, None, nothing, center, initial_state=state)
    expected, _ = reference.gated_delta_rule(q, k, v, g, beta, initial_state=S)
    torch.testing.assert_close(o, expected, rtol=1e-13, atol=1e-13)


@both_forms_of_kda
@pytest.mark.parametrize("normalize", [False, True])
def test_with_one_gate_for_all_channels_it_is_the_rule_of_one_gate(
    form: Form, normalize: bool
) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), unit(draw(1, 2, 7, 3, 5)), draw(2, 2, 7, 3, 2)
    g, beta = -draw(3, 2, 7, 3).abs(), torch.sigmoid(draw(4, 2, 7, 3))
    others: tuple[Any, ...] = (beta, -draw(6, 2, 7, 3).abs(), draw(7, 2, 7, 3).abs(), draw(8, 3))
    options: dict[str, Any] = {
        "use_qk_l2norm_in_kernel": normalize,
        "initial_state": draw(5, 2, 3, 5, 3).abs(),
        "output_final_state": True,
    }
    expected = reference.precond_gated_delta_rule(q, k, v, g, *others, **options)
    got = form(q, k, v, g[..., None].expand_as(k), *others, **options)
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)
