import math

import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows

# silu(log 3) = 3/4 log 3.
LOG3 = math.log(3)


@both_forms_of(reference.rms_norm_gated)
def test_root_mean_square_by_hand(form: Form) -> None:
    x, z, w = rows([3, 4])[None, None], rows([LOG3, 0])[None, None], rows(2, 4)
    # (9 + 16) / 2 + 23.5 = 6².
    y = form(x, z, w, eps=23.5, activation="sigmoid")
    torch.testing.assert_close(y.flatten(), rows(3 / 4, 4 / 3), rtol=1e-15, atol=0)
    y = form(x, z, w, eps=23.5)
    torch.testing.assert_close(y.flatten(), rows(3 / 4 * LOG3, 0), rtol=1e-15, atol=1e-15)
    # The gated vector is (3, 4) again.
    y = form(rows([4, 8])[None, None], z, w, eps=23.5, activation="sigmoid", gate_first=True)
    torch.testing.assert_close(y.flatten(), rows(1, 8 / 3), rtol=1e-15, atol=0)


@both_forms_of(reference.layer_norm_gated)
def test_deviation_by_hand(form: Form) -> None:
    x, z = rows([5, 11])[None, None], rows([LOG3, 0])[None, None]
    # Mean 8, variance 9 and 16 of ε: -3/5 and 3/5.
    y = form(x, z, rows(5, 10), rows(1, 2), eps=16, activation="sigmoid")
    torch.testing.assert_close(y.flatten(), rows(-3 / 2, 4), rtol=1e-15, atol=0)
    x = rows([20 / 3, 22])[None, None]
    y = form(x, z, rows(5, 10), rows(1, 2), eps=16, activation="sigmoid", gate_first=True)
    torch.testing.assert_close(y.flatten(), rows(-2, 8), rtol=1e-15, atol=0)


@both_forms_of(reference.layer_norm_gated)
def test_of_vectors_of_mean_zero_both_norms_are_one(form: Form) -> None:
    x, z = draw(0, 2, 3, 2, 5), draw(1, 2, 3, 2, 5)
    x = x - x.mean(-1, keepdim=True)
    expected = reference.rms_norm_gated(x, z)
    torch.testing.assert_close(form(x, z), expected, rtol=1e-13, atol=1e-13)


@both_forms_of(reference.rms_norm_gated)
def test_it_is_l2norm_times_the_root_of_the_dim(form: Form) -> None:
    x, z = draw(0, 2, 3, 2, 5), draw(1, 2, 3, 2, 5)
    gate = torch.nn.functional.silu(z)
    expected = math.sqrt(5) * reference.l2norm(x, eps=5e-6) * gate
    torch.testing.assert_close(form(x, z), expected, rtol=1e-14, atol=1e-15)
