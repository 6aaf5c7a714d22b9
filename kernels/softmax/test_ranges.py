"""Cotangents are divided by powers of two that keep gradients of logits in float16's range."""

import math

import pytest
import torch

from kernels.softmax.ranges import power, powers

nan = math.nan


def _tensors(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lengths of do: 5000 and 10; of v: 13, 13; dlse is 0. B = 1, T = 2, H = G = 1, V = 2."""
    do = torch.tensor([[3000.0, 4000.0], [6.0, 8.0]], dtype=torch.float16, device=device)
    v = torch.tensor([[5.0, 12.0], [5.0, 12.0]], dtype=torch.float16, device=device)
    return do[None, :, None], torch.zeros(1, 1, 2, device=device), v[None, :, None]


def test_a_bound_above_half_the_range_is_halved_until_it_is_below(device: torch.device) -> None:
    do, dlse, v = _tensors(device)
    # 2 · 5000 · 13 = 130000 = 0.99 · 2^17
    found = powers(do, dlse, v, None, None)
    assert found is not None
    assert found.of_queries.tolist() == found.of_keys.tolist() == [[4.0]]
    smaller, _ = found.divided(do, dlse)
    assert smaller.flatten().tolist() == [750.0, 1000.0, 1.5, 2.0]
    dlse[0, 0, 1] = -1e5
    found = powers(do, dlse, v, None, None)
    assert found is not None
    # 130000 + 100000 = 0.88 · 2^18
    assert found.of_queries.tolist() == [[8.0]]
    assert found.divided(do, dlse)[1].flatten().tolist() == [0.0, -12500.0]


def test_the_factor_of_a_head_multiplies_its_bound(device: torch.device) -> None:
    do, dlse, v = _tensors(device)
    do, dlse = torch.cat([do, do], 2), torch.cat([dlse, dlse - 1e5], 1)
    found = powers(do, dlse, v, None, None, torch.tensor([-4.0, 0.5], device=device))
    assert found is not None
    # 4 · 2 · 5000 · 13 + 0.5 · 100000 = 570000 = 0.54 · 2^20
    assert found.of_keys.tolist() == [[32.0]]


def test_each_packed_sequence_has_a_power_of_its_own_whatever_is_nan(device: torch.device) -> None:
    do, dlse, v = _tensors(device)
    cu_seqlens = torch.tensor([0, 1, 1, 2], device=device)
    found = powers(do, dlse, v, cu_seqlens, cu_seqlens)
    assert found is not None
    assert found.of_queries.tolist() == found.of_keys.tolist() == [[4.0, 1.0]]
    do[0, 1] = nan
    found = powers(do, dlse, v, cu_seqlens, cu_seqlens)
    assert found is not None
    assert found.of_queries.tolist() == [[4.0, 1.0]]


def test_gradients_are_multiplied_by_what_cotangents_were_divided_by(device: torch.device) -> None:
    do, dlse, v = _tensors(device)
    found = powers(do, dlse, v, None, None)
    assert found is not None
    dq, dk, dv = torch.full((3, 1, 2, 1, 2), 3.0, dtype=torch.float16, device=device)
    found.restore(dq, dk, dv)
    assert all(bool((x == 12.0).all()) for x in (dq, dk, dv))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes_need_none(dtype: torch.dtype, device: torch.device) -> None:
    do, dlse, v = (x.to(dtype) for x in _tensors(device))
    assert powers(do, dlse, v, None, None) is None


def test_the_largest_numbers_have_a_power_too(device: torch.device) -> None:
    do = torch.full((1, 1, 1, 256), 65504.0, dtype=torch.float16, device=device)
    found = powers(do, torch.zeros(1, 1, 1, device=device), do, None, None)
    assert found is not None
    # 2 · (65504 · 16)^2 = 0.998 · 2^41
    assert found.of_keys.tolist() == [[2.0**26]]
    empty = do[:, :0]
    assert powers(empty, torch.zeros(1, 1, 0, device=device), empty, None, None) is not None


def test_a_bound_that_is_no_power_is_divided_to_at_most_two_to_the_15th() -> None:
    bounds = torch.tensor([0.0, 1.0, 32767.0, 32769.0, 2.0**20 + 1, math.inf, nan])
    divided = bounds / power(bounds)
    assert power(bounds)[:5].tolist() == [1.0, 1.0, 1.0, 2.0, 64.0]
    assert (divided[:5] <= 2.0**15).all()
    assert power(bounds)[5:].isfinite().all()
