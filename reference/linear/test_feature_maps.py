import math
from typing import Any

import pytest
import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows

both_forms = both_forms_of(reference.feature_map)


@both_forms
def test_features_by_hand(form: Form) -> None:
    x = rows([1, -2])[None, :, None]

    def features(kind: str, **options: Any) -> torch.Tensor:
        y: torch.Tensor = form(x, kind, **options)
        return y.flatten()

    e = math.e
    torch.testing.assert_close(features("elu"), rows(2, e**-2), rtol=1e-15, atol=0)
    assert torch.equal(features("relu"), rows(1, 0))
    exponentials = rows(e, e**-2, 1 / e, e**2)
    want = exponentials / exponentials.sum()
    torch.testing.assert_close(features("hedgehog"), want, rtol=1e-14, atol=0)
    # r = (1, 0, 0, 2): beside its neighbour on the left, and the one after that.
    assert torch.equal(features("dpfp"), rows(2, 0, 0, 0))
    assert torch.equal(features("dpfp", nu=2), rows(2, 0, 0, 0, 0, 0, 0, 0))
    assert torch.equal(features("dpfp", nu=3)[8:], rows(0, 0, 0, 2))
    root = 2**0.25
    want = rows(1, 1 / root, -2 / root, 1 / 2, -1, -1, 2)
    torch.testing.assert_close(features("taylor"), want, rtol=1e-15, atol=0)


@both_forms
def test_taylor_weighs_as_based_does(form: Form) -> None:
    q, k, v = draw(0, 2, 6, 3, 5), draw(1, 2, 6, 3, 5), draw(2, 2, 6, 3, 4)
    maps = form(q, "taylor"), form(k, "taylor")
    o, _ = reference.linear_attn(*maps, v, scale=1.0)
    expected = reference.based(q, k, v, normalize=False)
    torch.testing.assert_close(o, expected, rtol=1e-12, atol=1e-12)


@both_forms
@pytest.mark.parametrize("kind", ["elu", "relu", "hedgehog", "dpfp"])
def test_no_weight_is_negative(form: Form, kind: str) -> None:
    y = form(draw(0, 2, 7, 3, 5), kind, nu=2)
    assert (y >= 0).all()
    if kind == "hedgehog":
        torch.testing.assert_close(y.sum(-1), torch.ones(2, 7, 3, dtype=y.dtype))


@both_forms
def test_large_numbers_have_finite_features(form: Form) -> None:
    x = rows([1e4, -1e4])[None, :, None]
    want = rows(1 / 2, 0, 0, 1 / 2)
    torch.testing.assert_close(form(x, "hedgehog").flatten(), want, rtol=1e-11, atol=0)
    assert torch.equal(form(x, "elu").flatten(), rows(10001, 0))


@both_forms
def test_bad_options_are_refused(form: Form) -> None:
    x = draw(0, 1, 1, 1, 2)
    with pytest.raises(ValueError, match="kind: 'gelu', expected one of elu, relu"):
        form(x, "gelu")
    with pytest.raises(ValueError, match="nu: 0, expected at least 1"):
        form(x, "dpfp", nu=0)


@both_forms
@pytest.mark.parametrize(("kind", "slope"), [("elu", 1.0), ("relu", 0.0), ("dpfp", 0.0)])
def test_gradient_where_it_jumps(form: Form, kind: str, slope: float) -> None:
    """At 0 beside a number, which `dpfp` multiplies it with."""
    x = rows([1.0, 0.0])[None, :, None].requires_grad_()
    (dx,) = torch.autograd.grad(form(x, kind, nu=3).sum(), x)
    assert float(dx.flatten()[1]) == slope
