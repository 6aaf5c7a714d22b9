"""Caches that a model keeps between two calls: keys and values, or recurrent states."""

from kernels.cache.contiguous import ContiguousCache
from kernels.cache.cross import CrossAttentionCache
from kernels.cache.kv import CacheView, KVCache
from kernels.cache.latent import LatentCache
from kernels.cache.paged import PagedCache
from kernels.cache.quantized import QuantizedCache
from kernels.cache.recurrent import RecurrentCache
from kernels.cache.sliding import SlidingWindowCache
from kernels.cache.streaming import StreamingCache

__all__ = [
    "CacheView",
    "ContiguousCache",
    "CrossAttentionCache",
    "KVCache",
    "LatentCache",
    "PagedCache",
    "QuantizedCache",
    "RecurrentCache",
    "SlidingWindowCache",
    "StreamingCache",
]
