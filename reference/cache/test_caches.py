"""The oracles of the caches, by hand: tokens are numbered, and their keys are their numbers."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference import (
    CrossAttentionCache,
    KVCache,
    LatentCache,
    QuantizedCache,
    RecurrentCache,
    StreamingCache,
    attention,
)


def tokens(*rows: list[float]) -> tuple[Tensor, Tensor]:
    """Keys [B, T, 1, 1] that are the numbers; values [B, T, 1, 2], a number and its negative."""
    k = torch.tensor(rows, dtype=torch.float64)[:, :, None, None]
    return k, torch.cat([k, -k], dim=-1)


def keys(view: tuple[Tensor, ...]) -> list[float]:
    return view[0].flatten().tolist()


def test_an_update_attends_to_all_tokens_before_it_and_its_own() -> None:
    cache = KVCache(2)
    cache.update(*tokens([1, 2], [11, 12]))
    view = cache.update(*tokens([3], [13]))
    assert keys(view) == [1, 2, 3, 11, 12, 13]
    assert view.v[0, :, 0].tolist() == [[x, -x] for x in (1, 2, 3, 11, 12, 13)]
    assert view.cu_seqlens.tolist() == [0, 1, 2]
    assert view.cu_seqlens_k.tolist() == [0, 3, 6]


def test_a_ragged_update_takes_the_first_tokens_of_each_row() -> None:
    cache = KVCache(3)
    view = cache.update(*tokens([1, 2], [11, 12], [21, 22]), offset=torch.tensor([2, 0, 1]))
    assert keys(view) == [1, 2, 21]
    assert view.cu_seqlens.tolist() == view.cu_seqlens_k.tolist() == [0, 2, 2, 3]
    assert cache.length.tolist() == [2, 0, 1]


def test_the_first_query_of_a_chunk_sees_its_whole_window() -> None:
    cache = KVCache(1, window=3)
    cache.update(*tokens([1, 2, 3, 4]))
    k, v = tokens([5, 6, 7, 8])
    assert keys(cache.update(k, v)) == [3, 4, 5, 6, 7, 8]
    assert keys(cache.update(*tokens([9]))) == [7, 8, 9]
    assert cache.length.tolist() == [9]


def test_a_window_that_is_not_full_yet_forgets_nothing() -> None:
    cache = KVCache(1, window=4)
    cache.update(*tokens([1, 2]))
    assert cache.length.tolist() == [2]
    assert keys(cache.update(*tokens([3]))) == [1, 2, 3]


def test_an_update_without_tokens_attends_to_none() -> None:
    view = KVCache(2).update(*tokens([1, 2], [11, 12]), offset=0)
    assert view.k.shape == (1, 0, 1, 1)
    assert view.v.shape == (1, 0, 1, 2)
    assert view.cu_seqlens.tolist() == view.cu_seqlens_k.tolist() == [0, 0, 0]


def test_what_becomes_of_the_tensors_given_is_nothing_to_the_cache() -> None:
    cache = KVCache(1)
    k, v = tokens([1, 2])
    cache.update(k, v)
    k.zero_()
    v.zero_()
    view = cache.update(*tokens([3]))
    assert keys(view) == [1, 2, 3]
    assert view.v[0, :, 0].tolist() == [[1, -1], [2, -2], [3, -3]]


def test_attention_over_a_window_averages_the_window() -> None:
    """Queries of 0 weigh all keys they see alike."""
    cache = KVCache(1, window=2)
    k, v = tokens([1, 2, 3])
    first, nothing = cache.attend(torch.zeros_like(k), k, v)
    assert nothing is None
    assert first[0, :, 0, 0].tolist() == [1, 1.5, 2.5]
    k, v = tokens([4, 8])
    second, lse = cache.attend(torch.zeros_like(k), k, v, return_lse=True)
    torch.testing.assert_close(second[0, :, 0, 0], torch.tensor([3.5, 6.0]).double())
    torch.testing.assert_close(lse, torch.full((1, 1, 2), 2.0).double().log())


def test_decoding_token_by_token_equals_one_full_pass() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 7, h, d).double() for h, d in ((4, 3), (2, 3), (2, 5)))
    want, _ = attention(q, k, v, causal=True)
    cache = KVCache(2)
    steps = [cache.attend(q[:, t : t + 1], k[:, t : t + 1], v[:, t : t + 1])[0] for t in range(7)]
    torch.testing.assert_close(torch.cat(steps, 1), want)


def test_padding_rows_of_the_output_are_zero() -> None:
    cache = KVCache(1)
    k, v = tokens([1, 2])
    o, lse = cache.attend(k, k, v, offset=1, return_lse=True)
    assert o[0, 1].tolist() == [[0, 0]]
    assert lse is not None
    assert lse[0, 0, 1] == -torch.inf


def test_the_lse_is_as_precise_as_that_of_the_attention() -> None:
    """A sink in float32 is a logit in float32; e^-8 beside it is lost in bfloat16."""
    k, v = (x.bfloat16() for x in tokens([0]))
    sink = torch.tensor([8.0])
    _, lse = KVCache(1).attend(k, k, v, sink=sink, return_lse=True)
    torch.testing.assert_close(lse, torch.tensor([[[8 + math.log1p(math.exp(-8))]]]))


def test_crop_forgets_the_last_tokens() -> None:
    cache = KVCache(2)
    cache.update(*tokens([1, 2, 3], [11, 12, 13]), offset=torch.tensor([3, 1]))
    cache.crop(2)
    assert cache.length.tolist() == [2, 1]
    assert keys(cache.update(*tokens([4], [14]))) == [1, 2, 4, 11, 14]


def test_a_window_crops_by_one_token_once_it_has_forgotten_some() -> None:
    cache = KVCache(1, window=3)
    cache.update(*tokens([1, 2, 3, 4, 5]))
    with pytest.raises(ValueError, match="length: 3 for sequence 0"):
        cache.crop(3)
    cache.crop(4)
    assert keys(cache.update(*tokens([6]))) == [3, 4, 6]


def test_a_window_that_reaches_no_forgotten_token_crops_to_any_length() -> None:
    """The first token of a sequence sees no other, nor does any token in a window of 1."""
    for window, length in ((3, 0), (1, 3), (1, 0)):
        cache = KVCache(1, window)
        cache.update(*tokens([1, 2, 3, 4, 5]))
        cache.crop(length)
        assert cache.length.tolist() == [length]
        assert keys(cache.update(*tokens([6, 7]))) == [6, 7]
        assert cache.length.tolist() == [length + 2]


def test_a_window_that_has_forgotten_nothing_crops_to_any_length() -> None:
    cache = KVCache(1, window=3)
    cache.update(*tokens([1, 2, 3]))
    cache.crop(1)
    assert keys(cache.update(*tokens([4]))) == [1, 4]


def test_reorder_duplicates_drops_and_keeps_sequences_apart() -> None:
    cache = KVCache(2)
    cache.update(*tokens([1], [11]))
    cache.reorder(torch.tensor([1, 1, 0]))
    assert keys(cache.update(*tokens([2], [3], [4]))) == [11, 2, 11, 3, 1, 4]


def test_reset_forgets_tokens_and_lengths() -> None:
    cache = KVCache(1, window=2)
    cache.update(*tokens([1, 2, 3]))
    cache.reset()
    assert cache.length.tolist() == [0]
    assert keys(cache.update(*tokens([4]))) == [4]


def test_a_refused_update_changes_nothing() -> None:
    cache = KVCache(1)
    cache.update(*tokens([1]))
    k, v = tokens([2])
    for refused in (
        lambda: cache.update(k, v, 2),
        lambda: cache.update(k, v, -1),
        lambda: cache.update(k, v, True),
        lambda: cache.update(k.float(), v),
        lambda: cache.update(k, v[..., :1]),
        lambda: cache.update(torch.cat([k, k]), torch.cat([v, v])),
    ):
        with pytest.raises((TypeError, ValueError)):
            refused()
    assert keys(cache.update(*tokens([3]))) == [1, 3]


@pytest.mark.parametrize("window", [None, 2])
def test_a_refused_attention_appends_nothing(window: int | None) -> None:
    cache = KVCache(1, window=window)
    k = torch.randn(1, 3, 1, 2)
    cache.update(k, k)
    with pytest.raises(ValueError, match="softcap"):
        cache.attend(k, k, k, softcap=-1.0)
    with pytest.raises(ValueError, match="q: shape"):
        cache.attend(k[:, :1], k, k)
    assert cache.length.tolist() == [3]
    o, _ = cache.attend(k[:, :1], k[:, :1], k[:, :1])
    want = KVCache(1, window=window)
    want.update(k, k)
    assert torch.equal(o, want.attend(k[:, :1], k[:, :1], k[:, :1])[0])


def test_options_that_a_cache_sets_or_does_not_know_are_refused() -> None:
    """Nothing is appended then."""
    x = torch.ones(1, 1, 1, 2)
    caches: list[tuple[Any, tuple[Tensor, ...], tuple[str, ...]]] = [
        (KVCache(1), (x, x, x), ()),
        (QuantizedCache(1, torch.int8), (x, x, x), ()),
        (LatentCache(1), (x, x, x, x, x[0], x[0]), ("attention",)),
        (StreamingCache(1, 1, 1), (x, x, x, x[0, 0].expand(2, 2), x[0, 0].expand(2, 2)),
         ("window", "return_lse")),
        (CrossAttentionCache(1), (x,), ("window", "alibi_slopes")),
    ]  # fmt: skip
    for cache, given, more in caches:
        for name in ("causal", "cu_seqlens", "cu_seqlens_k", "g", "mask", "k_scale", *more):
            with pytest.raises(ValueError, match=rf"^{name}: given to a "):
                cache.attend(*given, **{name: None})
        assert cache.length.tolist() == [0]


def test_an_attention_sees_at_most_the_window_of_its_cache() -> None:
    cache = KVCache(1, window=2)
    k, v = tokens([1, 2, 3])
    with pytest.raises(ValueError, match=r"^window: 3, expected at most the 2 keys kept"):
        cache.attend(k, k, v, window=3)
    assert cache.length.tolist() == [0]
    o, _ = cache.attend(torch.zeros_like(k), k, v, window=None)
    assert o[0, :, 0, 0].tolist() == [1, 1.5, 2.5]


def test_layers_count_their_own_tokens() -> None:
    cache = RecurrentCache(1, layers=2)
    state = torch.ones(1, 2, 3, 5)
    cache.update(state, 0, offset=7)
    assert [cache.layer_length(layer).tolist() for layer in (0, 1)] == [[7], [0]]
    with pytest.raises(ValueError, match="layer 1 has seen"):
        _ = cache.length
    cache.update(2 * state, 1, offset=7)
    assert cache.length.tolist() == [7]
    assert cache.state(0) is state
    cache.crop(7)
    with pytest.raises(ValueError, match="cannot forget"):
        cache.crop(6)
    cache.reset()
    assert cache.state(0) is None
    assert cache.length.tolist() == [0]


def test_a_layer_counts_the_tokens_of_each_sequence_and_reorders_them_with_its_state() -> None:
    cache = RecurrentCache(2, layers=2)
    state = torch.arange(2.0)[:, None, None, None].expand(2, 1, 3, 5)
    cache.update(state, offset=torch.tensor([1, 2]))
    cache.update(state + 10, offset=3)
    assert cache.layer_length(0).tolist() == [4, 5]
    cache.reorder(torch.tensor([1, 0, 1]))
    assert cache.layer_length(0).tolist() == [5, 4, 5]
    reordered = cache.state(0)
    assert reordered is not None
    assert reordered[:, 0, 0, 0].tolist() == [11, 10, 11]
    assert cache.state(1) is None


def test_a_layer_that_is_not_there_is_refused() -> None:
    cache = RecurrentCache(1, layers=2)
    for layer in (-1, 2):
        with pytest.raises(ValueError, match=rf"^layer: {layer}, expected a layer in \[0, 2\)"):
            cache.update(torch.ones(1, 2, 3, 5), layer, offset=1)


def test_draft_tokens_are_taken_back_by_hand() -> None:
    """Three tokens are drafted one by one; one sequence keeps all, one keeps the first."""
    cache = RecurrentCache(2)
    state = torch.ones(2, 1, 1, 1)
    cache.update(state, offset=torch.tensor([5, 7]))
    cache.checkpoint(3)
    for token in (2, 3, 4):
        cache.update(token * state, offset=1)
    with pytest.raises(
        ValueError, match=r"^tokens: 4 of sequence 0, expected a number after which"
    ):
        cache.rollback(torch.tensor([4, 0]))
    cache.rollback(torch.tensor([0, 2]))
    assert cache.length.tolist() == [8, 8]
    kept = cache.state(0)
    assert kept is not None
    assert kept.flatten().tolist() == [4, 2]
    with pytest.raises(ValueError, match=r"^tokens: 1 of sequence 0"):
        cache.rollback(1)


def test_all_tokens_may_be_taken_back() -> None:
    cache = RecurrentCache(2)
    cache.checkpoint(1)
    cache.update(torch.ones(2, 1, 1, 1), offset=3)
    cache.rollback(torch.tensor([3, 0]))
    kept = cache.state(0)
    assert kept is not None
    assert kept.flatten().tolist() == [0, 1]
    assert cache.length.tolist() == [0, 3]


def test_a_layer_may_hold_the_rows_of_a_convolution() -> None:
    cache = RecurrentCache(2)
    rows = torch.arange(12.0).view(2, 2, 3)
    cache.update(rows, offset=2)
    cache.reorder(torch.tensor([1]))
    kept = cache.state()
    assert kept is not None
    assert torch.equal(kept, rows[1:])
    with pytest.raises(ValueError, match=r"^state: shape \[1\], expected \[1, \.\.\.\]"):
        cache.update(rows[0, 0, :1], offset=1)
