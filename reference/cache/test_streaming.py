import math
from itertools import pairwise

import pytest
import torch

import reference
from reference.testing import draw, rows


def one(*numbers: float) -> torch.Tensor:
    return rows(*numbers)[None, :, None, None]


def test_sinks_and_a_window_stay_by_hand() -> None:
    """Without a rotation and with equal logits, the output is the mean of the values held."""
    cache = reference.StreamingCache(1, sinks=1, window=2)
    nothing = torch.ones(3, 0, dtype=torch.float64), torch.zeros(3, 0, dtype=torch.float64)
    q = one(0, 0, 0, 0, 0)
    o = cache.attend(q, q, one(1, 2, 6, 10, 20), *nothing)
    torch.testing.assert_close(o, one(1, 3 / 2, 9 / 3, 17 / 3, 31 / 3), rtol=1e-15, atol=0)


def test_keys_are_rotated_by_their_place_in_the_cache_by_hand() -> None:
    """A quarter turn a place; the cache keeps the first key and the newest, at places 0 and 1.

    The newest key has the query's place and the logit 1, the first is a quarter turn away: 0.
    """
    cache = reference.StreamingCache(1, sinks=1, window=1)
    angle = rows(0, math.pi / 2)[:, None]
    x = rows(1, 0).expand(1, 4, 1, 2)
    o = cache.attend(x, x, one(1, 2, 3, 4), angle.cos(), angle.sin(), scale=1.0)
    late = [(1 + math.e * v) / (1 + math.e) for v in (2, 3, 4)]
    torch.testing.assert_close(o, one(1, *late), rtol=1e-14, atol=0)


def test_until_it_is_full_it_is_causal_attention_of_rotated_tokens() -> None:
    q, k, v = draw(0, 2, 7, 4, 6), draw(1, 2, 7, 2, 6), draw(2, 2, 7, 2, 5)
    cos, sin = (x.double() for x in reference.rotary_tables(7, 6))
    cache = reference.StreamingCache(2, sinks=2, window=5)
    o = torch.cat([cache.attend(q[:, t], k[:, t], v[:, t], cos, sin) for t in _PARTS], 1)
    q, k = (reference.rotary_embedding(x, cos, sin) for x in (q, k))
    want, _ = reference.attention(q, k, v, causal=True)
    torch.testing.assert_close(o, want, rtol=1e-12, atol=1e-12)


_PARTS = (slice(0, 3), slice(3, 4), slice(4, 7))


@pytest.mark.parametrize("cuts", [(0, 12), (0, 1, 5, 12), (*range(13),)])
def test_it_does_not_matter_how_a_stream_is_cut(cuts: tuple[int, ...]) -> None:
    q, k, v = draw(0, 1, 12, 4, 6), draw(1, 1, 12, 2, 6), draw(2, 1, 12, 2, 5)
    cos, sin = (x.double() for x in reference.rotary_tables(5, 6))
    cache = reference.StreamingCache(1, sinks=2, window=3)
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    o = torch.cat([cache.attend(q[:, t], k[:, t], v[:, t], cos, sin) for t in parts], 1)
    # The last token sees tokens 0, 1, 9, 10 and 11, at places 0 to 4.
    seen = [0, 1, 9, 10, 11]
    q, k = (reference.rotary_embedding(x[:, seen], cos, sin) for x in (q, k))
    want, _ = reference.attention(q, k, v[:, seen], causal=True)
    torch.testing.assert_close(o[:, -1], want[:, -1], rtol=1e-12, atol=1e-12)


def test_a_ragged_batch_is_reordered_with_what_it_has_forgotten() -> None:
    """With equal logits and no rotation, outputs are means of the values held."""
    cache = reference.StreamingCache(2, sinks=1, window=2)
    nothing = torch.ones(3, 0, dtype=torch.float64), torch.zeros(3, 0, dtype=torch.float64)
    v = torch.cat([one(1, 2, 3, 4, 5), one(10, 20, 30, 40, 50)])
    cache.attend(0 * v, 0 * v, v, *nothing, offset=torch.tensor([5, 2]))
    assert cache.length.tolist() == [5, 2]
    cache.reorder(torch.tensor([1, 0, 1]))
    v = torch.cat([one(60), one(6), one(90)])
    o = cache.attend(0 * v, 0 * v, v, *nothing)
    torch.testing.assert_close(o.flatten(), rows(30, 4, 40), rtol=1e-15, atol=0)
    assert cache.length.tolist() == [3, 6, 3]


def test_a_crop_needs_the_tokens_that_the_next_one_sees() -> None:
    cache = reference.StreamingCache(1, sinks=1, window=3)
    nothing = torch.ones(4, 0, dtype=torch.float64), torch.zeros(4, 0, dtype=torch.float64)
    v = one(1, 2, 3, 4, 5, 6)
    cache.attend(0 * v, 0 * v, v, *nothing)
    with pytest.raises(ValueError, match=r"^length: 4 for sequence 0"):
        cache.crop(4)
    cache.crop(5)
    o = cache.attend(0 * v[:, :1], 0 * v[:, :1], one(9), *nothing)
    torch.testing.assert_close(o, one((1 + 4 + 5 + 9) / 4), rtol=1e-15, atol=0)
    cache.crop(1)
    o = cache.attend(0 * v[:, :1], 0 * v[:, :1], one(3), *nothing)
    torch.testing.assert_close(o, one(2), rtol=1e-15, atol=0)
    assert cache.length.tolist() == [2]


def test_a_bad_argument_is_named_and_changes_nothing() -> None:
    cache = reference.StreamingCache(2, sinks=1, window=2)
    x, table = draw(0, 2, 1, 1, 2), torch.ones(2, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^cos: 2 places, expected at least 3"):
        cache.attend(x, x, x, table, table)
    with pytest.raises(ValueError, match=r"^q: shape"):
        cache.attend(x[:1], x, x, table, table)
    assert cache.tokens == [[], []]
    tables = torch.ones(3, 1, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    cache.attend(x, x, x, *tables)
    two = x.expand(-1, -1, 2, -1)
    with pytest.raises(ValueError, match=r"^k: torch.float64 \[2, 1, 2, 2\], expected .* held"):
        cache.attend(two, two, two, *tables)
    assert cache.length.tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"^window: 0, expected at least 1"):
        reference.StreamingCache(1, sinks=0, window=0)
