"""The oracle of the cache of cross-attention."""

import pytest
import torch

from reference import CrossAttentionCache, attention
from reference.testing import draw


def test_each_query_sees_all_tokens_of_its_sequence() -> None:
    cache = CrossAttentionCache(2)
    q, k, v = draw(0, 2, 3, 4, 5), draw(1, 2, 6, 2, 5), draw(2, 2, 6, 2, 7)
    cache.update(k, v, torch.tensor([6, 2]))
    o, lse = cache.attend(q, offset=torch.tensor([1, 3]), return_lse=True)
    assert lse is not None
    for n, (queries, keys) in enumerate(((1, 6), (3, 2))):
        given = q[n : n + 1, :queries], k[n : n + 1, :keys], v[n : n + 1, :keys]
        want, want_lse = attention(*given, return_lse=True)
        assert want_lse is not None
        torch.testing.assert_close(o[n, :queries], want[0])
        torch.testing.assert_close(lse[n, :, :queries], want_lse[0])
        assert (o[n, queries:] == 0).all()
    assert cache.length.tolist() == [6, 2]


def test_it_is_written_once_after_each_reset() -> None:
    cache = CrossAttentionCache(1)
    x = draw(0, 1, 2, 1, 3)
    with pytest.raises(ValueError, match=r"^q: given before the keys"):
        cache.attend(x)
    cache.update(x, x)
    with pytest.raises(ValueError, match=r"^k: given again"):
        cache.update(x, x)
    assert cache.length.tolist() == [2]
    cache.reset()
    cache.update(x, x, 1)
    assert cache.length.tolist() == [1]


def test_a_sequence_without_tokens_gives_zero() -> None:
    cache = CrossAttentionCache(2)
    x = draw(0, 2, 1, 1, 3)
    cache.update(x, x, torch.tensor([1, 0]))
    o, lse = cache.attend(x, return_lse=True)
    assert lse is not None
    assert torch.equal(o[0], x[0])
    assert (o[1] == 0).all()
    assert lse[1].item() == -torch.inf
