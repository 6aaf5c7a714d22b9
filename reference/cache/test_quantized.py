"""The oracle of 8-bit caches, by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference import KVCache, QuantizedCache
from reference.testing import draw


def one(*numbers: float) -> Tensor:
    """Tokens [1, T, 1, 1] of one number each."""
    return torch.tensor(numbers, dtype=torch.float32)[None, :, None, None]


def keys(cache: QuantizedCache, *numbers: float) -> list[float]:
    """The keys that an update of these attends to."""
    return cache.update(one(*numbers), one(*numbers)).k.flatten().tolist()


def test_a_block_of_two_tokens_shares_the_scale_of_the_larger() -> None:
    """127 and 254 are largest, so scales are 1 and 2; 2.5 and 3.5 are ties."""
    cache = QuantizedCache(1, torch.int8, block=2)
    assert keys(cache, 2.5, -127, 254, 5) == [2, -127, 254, 4]
    assert keys(cache, 3.5, 127)[4:] == [4, 127]


def test_later_tokens_of_a_block_saturate() -> None:
    cache = QuantizedCache(1, torch.int8, block=3)
    assert keys(cache, 127) == [127]
    assert keys(cache, 0.75, -1000, 254) == [127, 1, -127, 254]


def test_a_crop_to_the_first_token_of_a_block_ends_its_scale() -> None:
    cache = QuantizedCache(1, torch.int8, block=2)
    keys(cache, 127, 254, 127)
    cache.crop(3)
    assert keys(cache, 254)[3] == 127
    cache.crop(2)
    assert keys(cache, 254)[2] == 254


def test_float8_has_the_codes_of_its_dtype() -> None:
    """448 is the largest; 17 lies between 16 and 18, and 19 between 18 and 20."""
    cache = QuantizedCache(1, torch.float8_e4m3fn, k_scale=1.0, v_scale=1.0)
    assert keys(cache, 448, 17, 19, 1e30, -1e30, 0) == [448, 16, 20, 448, -448, 0]


def test_each_head_of_keys_and_of_values_has_a_scale() -> None:
    k = torch.tensor([[[[127.0, 0.4], [254.0, 0.4]]]])
    v = torch.tensor([[[[12.7, 0.04], [0.0, 0.0]]]])
    view = QuantizedCache(1, torch.int8).update(k, v)
    assert view.k.tolist() == [[[[127, 0], [254, 0]]]]
    torch.testing.assert_close(view.v, torch.tensor([[[[12.7, 0.0], [0.0, 0.0]]]]))


def test_beams_go_on_with_the_scale_of_the_sequence_that_they_come_from() -> None:
    cache = QuantizedCache(2, torch.int8, block=4)
    x = torch.tensor([127.0, 254.0])[:, None, None, None]
    cache.update(x, x)
    cache.reorder(torch.tensor([1, 1, 0]))
    y = torch.full((3, 1, 1, 1), 5.0)
    assert cache.update(y, y).k.flatten().tolist() == [254, 4, 254, 4, 127, 5]


def test_tokens_of_one_scale_each_are_as_near_as_half_a_code() -> None:
    k = draw(0, 2, 5, 3, 7)
    for bits, part in ((torch.int8, 1 / 254), (torch.float8_e4m3fn, 1 / 16)):
        got, want = QuantizedCache(2, bits).update(k, k), KVCache(2).update(k, k)
        error = (got.k - want.k).abs()
        assert (error <= 1.001 * part * want.k.abs().amax(-1, keepdim=True)).all()
        assert (error > 0).any()


def test_attention_is_that_over_the_restored_tokens() -> None:
    cache, plain = QuantizedCache(1, torch.int8), KVCache(1)
    q, k, v = (draw(n, 1, 4, 2, 3).float() for n in range(3))
    o, _ = cache.attend(q, k, v)
    view = QuantizedCache(1, torch.int8).update(k, v)
    want, _ = plain.attend(q, view.k, view.v)
    assert torch.equal(o, want)


def test_a_bad_argument_is_named() -> None:
    with pytest.raises(TypeError, match=r"^bits: torch\.int16"):
        QuantizedCache(1, torch.int16)
    with pytest.raises(ValueError, match=r"^block: 0"):
        QuantizedCache(1, torch.int8, block=0)
    with pytest.raises(ValueError, match=r"^k_scale, v_scale: one is given"):
        QuantizedCache(1, torch.int8, k_scale=1.0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1.0, -1e-300, 1e39, True, "1"])
def test_a_scale_is_a_finite_number_of_at_least_0(wrong: Any) -> None:
    for name in ("k_scale", "v_scale"):
        with pytest.raises((TypeError, ValueError), match=rf"^{name}: "):
            QuantizedCache(1, torch.int8, **{"k_scale": 1.0, "v_scale": 1.0, name: wrong})


def test_a_given_scale_of_0_gives_0() -> None:
    assert keys(QuantizedCache(1, torch.int8, k_scale=0.0, v_scale=0.0), 3, -5) == [0, 0]
