"""Caches with thousands of tokens, tens of sequences and tens of heads, compared with lists of
tokens.
"""

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from kernels.cache import ContiguousCache, KVCache, PagedCache, SlidingWindowCache
from properties.suite.caches.calls import refuses

LONG = st.lists(st.sampled_from([1, 64, 65, 700, 1024, 2049]), min_size=2, max_size=4)
FEW = st.lists(st.integers(0, 3), min_size=2, max_size=4)
SHAPES = st.one_of(
    st.tuples(LONG, st.integers(1, 2), st.just(1)),
    st.tuples(FEW, st.integers(33, 70), st.integers(1, 2)),
    st.tuples(FEW, st.integers(1, 2), st.integers(33, 70)),
)
WINDOWS = st.sampled_from([1, 2, 63, 65, 1000, 3000])
PAGE_SIZES = st.sampled_from([1, 2, 16, 100, 1024])


@pytest.mark.parametrize("kind", ["contiguous", "sliding", "paged"])
def test_long_caches_and_many_sequences_match_the_list_of_tokens(
    kind: str, device: torch.device
) -> None:
    """All elements differ, so none can be right in another's place."""

    @given(
        shape=SHAPES,
        dims=st.tuples(st.integers(1, 4), st.integers(1, 4)),
        window=WINDOWS,
        page_size=PAGE_SIZES,
        event=st.sampled_from(["nothing", "crop", "reorder"]),
        seed=st.integers(0, 999),
    )
    def matches(
        shape: tuple[list[int], int, int],
        dims: tuple[int, int],
        window: int,
        page_size: int,
        event: str,
        seed: int,
    ) -> None:
        chunks, batch, heads = shape
        room = max(1, sum(chunks))
        options: dict[str, Any] = {"device": device}
        cache: KVCache
        if kind == "contiguous":
            cache = ContiguousCache(batch, room, heads, *dims, **options)
        elif kind == "sliding":
            cache = SlidingWindowCache(batch, window, heads, *dims, **options)
        else:
            number = batch * (-(-room // page_size) + 1)
            cache = PagedCache(batch, number, page_size, heads, *dims, **options)
        model = reference.KVCache(batch, window if kind == "sliding" else None)
        numbers = 0
        draw = random.Random(seed)
        for tokens in chunks:
            k, v = (
                torch.arange(1.0, 1 + batch * tokens * heads * d, device=device)
                .add(numbers)
                .view(batch, tokens, heads, d)
                for d in dims
            )
            numbers += max(k.numel(), v.numel())
            assert numbers < 2**24
            v = -v
            offset = torch.tensor([draw.choice((tokens, tokens // 2)) for _ in range(batch)])
            got, want = cache.update(k, v, offset), model.update(k, v, offset)
            for name, x, y in zip(want._fields, got, want, strict=True):
                assert torch.equal(x, y.to(x.dtype)), f"{name} of the view differs"
            if event == "crop":
                length = (model.length - 1).clamp(min=0)
                # As after two crops, when a window has forgotten what the next token would need.
                assert refuses(cache.crop, length) == refuses(model.crop, length)
            elif event == "reorder":
                index = torch.tensor([draw.randrange(batch) for _ in range(batch)])
                for each in (cache, model):
                    each.reorder(index)
        assert cache.length.tolist() == model.length.tolist()

    matches()
