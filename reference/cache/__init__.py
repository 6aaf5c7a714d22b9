"""Caches that a model keeps between two calls, as lists of tokens and states."""

from reference.cache.cross import CrossAttentionCache
from reference.cache.kv import CacheView, KVCache
from reference.cache.latent import LatentCache
from reference.cache.quantized import QuantizedCache
from reference.cache.recurrent import RecurrentCache
from reference.cache.streaming import StreamingCache

__all__ = [
    "CacheView",
    "CrossAttentionCache",
    "KVCache",
    "LatentCache",
    "QuantizedCache",
    "RecurrentCache",
    "StreamingCache",
]
