"""A cache answers in every context what it answers in none: the same bits, in the same dtype.

The machines draw contexts too, beside so much else that a run may miss one.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cache import (
    ContiguousCache,
    CrossAttentionCache,
    LatentCache,
    PagedCache,
    QuantizedCache,
    SlidingWindowCache,
    StreamingCache,
)
from properties.suite.caches.calls import CONTEXTS, bits, context
from properties.suite.caches.machine import DTYPES

B, G, H, K, V = 2, 1, 2, 4, 6
# The second call has a sequence without a new token.
CALLS: tuple[tuple[int, list[int]], ...] = ((3, [3, 2]), (1, [0, 1]))


def _numbers(seed: int, *shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(device, dtype)


Where = dict[str, Any]
Given = tuple[int, Tensor]


def _of_tokens(kind: Callable[..., Any], where: Where, calls: list[Given]) -> Iterator[Any]:
    cache = kind(kv_heads=G, key_dim=K, value_dim=V, **where)
    for n, (tokens, offset) in enumerate(calls):
        q = _numbers(n, B, tokens, H, K, **where)
        k, v = (_numbers(n + dim, B, tokens, G, dim, **where) for dim in (K, V))
        yield cache.attend(q, k, v, offset=offset, return_lse=True)
    yield cache.update(k, v)


def _of_latents(absorbed: bool, where: Where, calls: list[Given]) -> Iterator[Any]:
    cache = LatentCache(B, 8, 2, latent_dim=V, rotary_dim=K, **where)
    w_uk, w_uv = _numbers(8, H, 3, V, **where), _numbers(9, H, 5, V, **where)
    for n, (tokens, offset) in enumerate(calls):
        q_n, q_r = (_numbers(n, B, tokens, H, dim, **where) for dim in (3, K))
        c, k_r = (_numbers(n + dim, B, tokens, 1, dim, **where) for dim in (V, K))
        more: dict[str, Any] = {"offset": offset, "absorbed": absorbed, "return_lse": True}
        yield cache.attend(q_n, q_r, c, k_r, w_uk, w_uv, **more)
    yield cache.update(c, k_r)


def _of_an_encoder(where: Where, calls: list[Given]) -> Iterator[Any]:
    cache = CrossAttentionCache(B, 8, 2, kv_heads=G, key_dim=K, value_dim=V, **where)
    tokens, offset = calls[0]
    k, v = (_numbers(dim, B, tokens, G, dim, **where) for dim in (K, V))
    yield cache.update(k, v, offset)
    yield cache.attend(_numbers(0, B, 2, H, K, **where), return_lse=True)


def _of_a_stream(where: Where, calls: list[Given]) -> Iterator[Any]:
    cache = StreamingCache(B, window=2, sinks=1, kv_heads=G, key_dim=K, value_dim=V, **where)
    tables = [_numbers(seed, 4, K // 2, **where | {"dtype": torch.float32}) for seed in (5, 6)]
    for n, (tokens, offset) in enumerate(calls):
        q = _numbers(n, B, tokens, H, K, **where)
        k, v = (_numbers(n + dim, B, tokens, G, dim, **where) for dim in (K, V))
        yield cache.attend(q, k, v, *tables, offset=offset)


KINDS: dict[str, Callable[[Where, list[Given]], Iterator[Any]]] = {
    "contiguous": partial(_of_tokens, partial(ContiguousCache, B, 8)),
    "sliding": partial(_of_tokens, partial(SlidingWindowCache, B, 3)),
    "paged": partial(_of_tokens, partial(PagedCache, B, 8, 2)),
    "quantized": partial(_of_tokens, partial(QuantizedCache, B, 8, 2, block=2)),
    "absorbed": partial(_of_latents, True),
    "naive": partial(_of_latents, False),
    "cross": _of_an_encoder,
    "streaming": _of_a_stream,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("kind", KINDS)
def test_a_context_changes_no_bit(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    def answers() -> list[Tensor]:
        where = {"dtype": dtype, "device": device}
        calls = [(tokens, torch.tensor(counts, device=device)) for tokens, counts in CALLS]
        return [x for each in KINDS[kind](where, calls) for x in each if x is not None]

    want = answers()
    for name in CONTEXTS:
        with context(name, device):
            got = answers()
        assert len(got) == len(want)
        for x, y in zip(got, want, strict=True):
            assert x.dtype == y.dtype, f"{name}: {x.dtype}, expected {y.dtype}"
            assert torch.equal(bits(x), bits(y)), f"{name}: {x}, expected {y}"
