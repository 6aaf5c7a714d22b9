import math
from typing import Any

import pytest

from reference import resolve_scale


@pytest.mark.parametrize("sentinel", [None, -1, -1.0])
def test_none_and_minus_one_mean_the_inverse_root_of_the_key_dim(sentinel: float | None) -> None:
    assert resolve_scale(sentinel, 16) == 0.25


@pytest.mark.parametrize("scale", [0, 0.0, 1, -2, -0.5, 1e-30, -1.0000001])
def test_any_other_finite_number_is_literal(scale: Any) -> None:
    assert resolve_scale(scale, 16) == scale
    assert type(resolve_scale(scale, 16)) is float


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, 10**400])
def test_a_scale_that_is_not_finite_is_refused(scale: Any) -> None:
    with pytest.raises(ValueError, match=r"^scale: .*, expected a finite number, -1 or None$"):
        resolve_scale(scale, 16)


@pytest.mark.parametrize("scale", ["1", True, 1j, [1.0]])
def test_a_scale_that_is_not_a_number_is_refused(scale: Any) -> None:
    with pytest.raises(TypeError, match=r"^scale: .*, expected a finite number, -1 or None$"):
        resolve_scale(scale, 16)


def test_a_head_without_dims_has_no_scale() -> None:
    with pytest.raises(ValueError, match=r"^key_dim: 0, expected at least 1$"):
        resolve_scale(None, 0)
