import pytest
import torch

import reference
from reference.testing import Form, assert_nothing_grows, both_forms_of, draw, rows, unit

both_forms = both_forms_of(reference.delta_rule)


@both_forms
def test_three_tokens_by_hand(form: Form) -> None:
    q = rows([1, 3], [1, 3], [1, 3])
    k = rows([1, 0], [1, 0], [1, 1])
    v = rows([1, 2, 3], [3, 0, 1], [0, 0, 0])
    o, final_state = form(
        *(x[None, :, None] for x in (q, k, v)),
        rows(1, 1 / 2, 1)[None, :, None],
        scale=2.0,
        output_final_state=True,
    )
    # Token 1 writes v1 into row 1 of the state: S1 = (1 2 3; 0 0 0).
    # Token 2 finds (1, 2, 3) and goes half the way to v2: u2 = (1, -1, -1), S2 = (2 1 2; 0 0 0).
    # Token 3 finds (2, 1, 2), and with |k3|² = 2 takes as much from either row:
    # S3 = (0 0 0; -2 -1 -2).
    expected = rows([2, 4, 6], [4, 2, 4], [-12, -6, -12])
    assert torch.equal(o[0, :, 0], expected)
    assert torch.equal(final_state[0, 0], rows([0, 0, 0], [-2, -1, -2]))


@both_forms
@pytest.mark.parametrize("strength", [0, 1, 2])
def test_a_unit_key_is_left_replaced_or_reflected(form: Form, strength: int) -> None:
    S, k, v = draw(0, 1, 1, 5, 3), unit(draw(1, 1, 1, 1, 5)), draw(2, 1, 1, 1, 3)
    beta = torch.full((1, 1, 1), float(strength), dtype=torch.float64)
    # Reading with the key itself shows what it stands for now; it stood for `old`.
    o, state = form(k, k, v, beta, scale=1.0, initial_state=S, output_final_state=True)
    old = torch.einsum("bthk,bhkv->bthv", k, S)
    expected = {0: old, 1: v, 2: 2 * v - old}[strength]
    torch.testing.assert_close(o, expected, rtol=1e-15, atol=1e-15)
    # The state stays as it was along keys at right angles to k.
    other = unit(torch.linalg.cross(k[..., :3], draw(3, 1, 1, 1, 3)))
    other = torch.nn.functional.pad(other, (0, 2))
    across = torch.einsum("bthk,bhkv->bthv", other, state - S)
    torch.testing.assert_close(across, torch.zeros_like(v), rtol=0, atol=1e-15)


@both_forms
def test_with_strength_1_only_the_last_value_of_a_repeated_key_counts(form: Form) -> None:
    k = unit(draw(0, 1, 1, 3, 5)).expand(1, 9, 3, 5)
    q, v = draw(1, 1, 9, 3, 5), draw(2, 1, 9, 3, 2)
    _, state = form(q, k, v, output_final_state=True)
    _, last = form(q[:, 8:], k[:, 8:], v[:, 8:], output_final_state=True)
    torch.testing.assert_close(state, last, rtol=1e-14, atol=1e-14)


@both_forms
def test_with_orthogonal_keys_and_strength_1_it_is_linear_attention(form: Form) -> None:
    k = torch.linalg.qr(draw(0, 1, 3, 5, 5))[0].transpose(1, 2)
    q, v = draw(1, 1, 5, 3, 5), draw(2, 1, 5, 3, 2)
    expected = reference.linear_attn(q, k, v, output_final_state=True)
    torch.testing.assert_close(
        form(q, k, v, output_final_state=True), expected, rtol=1e-14, atol=1e-14
    )


@both_forms
def test_queries_and_keys_are_normalized_on_request(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), 3 * draw(1, 2, 7, 3, 5), draw(2, 2, 7, 3, 2)
    beta = 2 * torch.sigmoid(draw(3, 2, 7, 3))
    q[0, 2], k[1, 3] = 0, 0
    o, _ = form(q, k, v, beta, use_qk_l2norm_in_kernel=True)
    expected, _ = form(reference.l2norm(q), reference.l2norm(k), v, beta)
    assert torch.equal(o, expected)
    assert not torch.equal(o, form(q, k, v, beta)[0])


HARD: dict[str, tuple[float, float]] = {
    # name: length of the keys, how far they differ from each other
    "random": (1.0, 1e3),
    "repeated": (1.0, 0.0),
    "nearly parallel": (1.0, 1e-6),
    "long": (3.0, 1e3),
    "long and nearly parallel": (3.0, 1e-6),
}


@both_forms
@pytest.mark.parametrize("edge", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(("length", "spread"), HARD.values(), ids=HARD)
def test_nothing_grows_while_beta_k_k_is_at_most_2(
    form: Form, length: float, spread: float, edge: float
) -> None:
    T = 200
    k = length * unit(draw(0, 1, 1, 3, 5) + spread * draw(1, 1, T, 3, 5))
    beta = torch.full((1, T, 3), edge / length**2, dtype=torch.float64)
    assert_nothing_grows(lambda v, **options: form(k, k, v, beta, **options), T)


@both_forms
def test_a_key_of_norm_3_and_strength_1_grows_eightfold_with_every_token(form: Form) -> None:
    k = rows([3, 0]).expand(1, 20, 1, 2)
    v = torch.zeros(1, 20, 1, 1, dtype=torch.float64)
    S = rows([1], [1])[None, None]
    _, state = form(k, k, v, initial_state=S, output_final_state=True)
    assert torch.equal(state[0, 0], rows([8.0**20], [1]))
