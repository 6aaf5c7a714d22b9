"""By hand: one head of two dims, tokens 1 and -1, and ε = 1/2, with which the norms divide by 1.

The queries are ±(5 √2 log 2, 0), the keys ±(1, 0), and cos = 3/5 one token on: the logits of
token 1 are -3 log 2 and 5 log 2, its weights 1/257 and 256/257.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.layers import gated_attention
from reference.testing import (
    Bad,
    Form,
    assert_refused,
    bad_boundaries,
    both_forms_of,
    draw,
    each_bad,
    rows,
)

both_forms = both_forms_of(gated_attention)
HAND: Any = {
    "x": rows([1.0], [-1.0])[None],
    "w_q": rows([[1.0], [0.0]]),
    "w_g": rows([[math.log(3)], [0.0]]),
    "w_k": rows([[1.0], [0.0]]),
    "w_v": rows([[1.0], [3.0]]),
    "w_o": rows([[1.0, 10.0]]),
    "q_norm": rows(5 * math.sqrt(2) * math.log(2) - 1, 0.0),
    "k_norm": rows(0.0, 0.0),
    "cos": rows([1.0], [0.6]),
    "sin": rows([0.0], [0.8]),
    "eps": 0.5,
}
M, H, G, K, P = 5, 4, 2, 6, 2


def inputs(B: int = 2, T: int = 7) -> dict[str, Tensor]:
    shapes = {
        "x": (B, T, M), "w_q": (H, K, M), "w_g": (H, K, M), "w_k": (G, K, M), "w_v": (G, K, M),
        "w_o": (M, H, K), "q_norm": (K,), "k_norm": (K,),
    }  # fmt: skip
    tensors = {name: draw(seed, *shape) for seed, (name, shape) in enumerate(shapes.items())}
    cos, sin = reference.rotary_tables(max(T, 1), 2 * P, dtype=torch.float64)
    return {**tensors, "cos": cos, "sin": sin}


@both_forms
def test_norms_rotation_and_gates_by_hand(form: Form) -> None:
    want = rows(0.75 + 15, -255 / 257 * (0.25 + 15))
    torch.testing.assert_close(form(**HAND).flatten(), want, rtol=1e-13, atol=0)


@both_forms
def test_a_window_of_one_sees_the_own_value_by_hand(form: Form) -> None:
    torch.testing.assert_close(
        form(**HAND, window=1).flatten(), rows(15.75, -15.25), rtol=1e-13, atol=0
    )


@pytest.mark.parametrize("T", [0, 1, 7])
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"eps": 2.0}])
def test_both_forms_agree(T: int, options: dict[str, Any]) -> None:
    """To thousands of roundings of float64."""
    call: Any = {**inputs(T=T), **options}
    one, other = gated_attention(**call), gated_attention.second_form(**call)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@both_forms
def test_gradients_agree_with_finite_differences(form: Form) -> None:
    names, tensors = zip(*inputs(1, 3).items(), strict=True)
    fixed = dict(zip(names[8:], tensors[8:], strict=True))

    def function(*trained: Tensor) -> Any:
        return form(**dict(zip(names, trained, strict=False)), **fixed)

    assert torch.autograd.gradcheck(function, [x.requires_grad_() for x in tensors[:8]])


@both_forms
def test_a_token_depends_on_those_before_it_and_on_the_distance(form: Form) -> None:
    call = inputs()
    y = form(**call)
    earlier = form(**{**call, "x": call["x"][:, :4]})
    torch.testing.assert_close(y[:, :4], earlier, rtol=1e-13, atol=1e-13)
    later = {name: call[name][3:] for name in ("cos", "sin")}
    moved = form(**{**call, **later, "x": call["x"][:, :4]})
    torch.testing.assert_close(moved, earlier, rtol=1e-13, atol=1e-13)


@both_forms
def test_packed_sequences_are_separate_ones(form: Form) -> None:
    # As many positions as the longest sequence has.
    call: Any = {**inputs(1, 4), "x": inputs(1, 7)["x"]}
    y = form(**call, cu_seqlens=torch.tensor([0, 3, 3, 7]))
    apart = [form(**{**call, "x": call["x"][:, t]}) for t in (slice(0, 3), slice(3, 7))]
    torch.testing.assert_close(y, torch.cat(apart, 1), rtol=1e-14, atol=1e-14)


BAD: dict[str, Bad] = {
    "heads": ({"w_k": draw(0, 3, K, M), "w_v": draw(1, 3, K, M)}, ValueError, "w_q: 4 heads"),
    "width": ({"w_o": draw(0, M + 1, H, K)}, ValueError, "w_o: float64"),
    "eps": ({"eps": 0.0}, ValueError, "eps: 0.0"),
    "window": ({"window": 0}, ValueError, "window: 0"),
    "short tables": (
        {"cos": draw(0, 6, P), "sin": draw(1, 6, P)},
        ValueError,
        "cos: of 6 positions, expected at least 7",
    ),
    "wide tables": (
        {"cos": draw(0, 7, 4), "sin": draw(1, 7, 4)},
        ValueError,
        "cos: of 4 pairs, expected at most K / 2 = 3",
    ),
    **bad_boundaries(x=inputs()["x"]),
}


@each_bad(BAD)
def test_bad_arguments_are_named(bad: Bad) -> None:
    assert_refused(bad, gated_attention, **inputs())
