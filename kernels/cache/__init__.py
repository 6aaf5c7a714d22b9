"""Caches that a model keeps between two calls: keys and values, or recurrent states."""

from kernels.cache.contiguous import ContiguousCache
from kernels.cache.kv import CacheView, KVCache
from kernels.cache.paged import PagedCache
from kernels.cache.quantized import QuantizedCache
from kernels.cache.recurrent import RecurrentCache
from kernels.cache.sliding import SlidingWindowCache

__all__ = [
    "CacheView",
    "ContiguousCache",
    "KVCache",
    "PagedCache",
    "QuantizedCache",
    "RecurrentCache",
    "SlidingWindowCache",
]
