import math
from typing import Any

import pytest
import torch

import reference
from reference.testing import Form, draw

RETENTION: list[Form] = [reference.retention, reference.retention.second_form]
LIGHTNING: list[Form] = [reference.lightning_attn, reference.lightning_attn.second_form]
both_forms_of_retention = pytest.mark.parametrize("form", RETENTION, ids=lambda f: f.__name__)
both_forms_of_lightning = pytest.mark.parametrize("form", LIGHTNING, ids=lambda f: f.__name__)
ONES = torch.ones(1, 3, 4, 1, dtype=torch.float64)


@both_forms_of_retention
def test_three_tokens_of_retention_by_hand(form: Form) -> None:
    """With q = k = v = 1 and a state of 2, o_t = 1 + γ + ... + γ ** (t - 1) + 2 γ ** t."""
    S = torch.full((1, 4, 1, 1), 2.0, dtype=torch.float64)
    o, final_state = form(ONES, ONES, ONES, initial_state=S, output_final_state=True)
    for h, y in enumerate([31 / 32, 63 / 64, 127 / 128, 255 / 256]):
        expected = [1 + 2 * y, 1 + y + 2 * y**2, 1 + y + y**2 + 2 * y**3]
        want = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(o[0, :, h, 0], want, rtol=4e-16, atol=0)
        torch.testing.assert_close(final_state[0, h, 0, 0], want[2], rtol=4e-16, atol=0)


@both_forms_of_lightning
def test_two_tokens_of_lightning_attention_by_hand(form: Form) -> None:
    """Layer 1 of 2 with 4 heads decays by exp(-8 h / 4 · 1/2) = exp(-h)."""
    o, _ = form(ONES, ONES, ONES, 1, 2)
    for h in range(4):
        y = math.exp(-h)
        want = torch.tensor([1, 1 + y, 1 + y + y * y], dtype=torch.float64)
        torch.testing.assert_close(o[0, :, h, 0], want, rtol=4e-16, atol=0)


@both_forms_of_retention
@pytest.mark.parametrize("reverse", [False, True])
def test_retention_is_simple_gla_with_a_constant_decay(form: Form, reverse: bool) -> None:
    q, k, v = draw(0, 2, 7, 4, 5), draw(1, 2, 7, 4, 5), draw(2, 2, 7, 4, 3)
    options: dict[str, Any] = {
        "initial_state": draw(3, 2, 4, 5, 3),
        "output_final_state": True,
        "reverse": reverse,
    }
    g = torch.tensor([math.log1p(-(2.0 ** (-5 - h))) for h in range(4)], dtype=torch.float64)
    expected = reference.simple_gla(q, k, v, g.expand(2, 7, 4), **options)
    torch.testing.assert_close(form(q, k, v, **options), expected, rtol=1e-13, atol=1e-13)


@both_forms_of_lightning
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layer", [0, 2, 5])
def test_lightning_attention_is_simple_gla_with_a_constant_decay(
    form: Form, layer: int, reverse: bool
) -> None:
    q, k, v = draw(0, 2, 7, 4, 5), draw(1, 2, 7, 4, 5), draw(2, 2, 7, 4, 3)
    options: dict[str, Any] = {
        "initial_state": draw(3, 2, 4, 5, 3),
        "output_final_state": True,
        "reverse": reverse,
    }
    g = torch.tensor([-2 * h * (1 - layer / 5) for h in range(4)], dtype=torch.float64)
    expected = reference.simple_gla(q, k, v, g.expand(2, 7, 4), **options)
    torch.testing.assert_close(form(q, k, v, layer, 5, **options), expected, rtol=1e-13, atol=1e-13)


@both_forms_of_lightning
@pytest.mark.parametrize(
    ("layer", "layers", "message"),
    [
        (-1, 2, r"layer_idx: -1, expected 0 to num_layers=2"),
        (3, 2, r"layer_idx: 3, expected 0 to num_layers=2"),
        (0, 0, r"num_layers: 0, expected at least 1"),
    ],
)
def test_a_layer_that_is_not_there_is_refused(
    form: Form, layer: int, layers: int, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        form(ONES, ONES, ONES, layer, layers)
