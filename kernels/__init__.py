"""Attention kernels in Triton. Each op takes the arguments of its namesake in `reference`, and the
keyword-only `mode` and `tile` besides, which change how an op computes and not what.
"""

from kernels.cache import (
    CacheView,
    ContiguousCache,
    KVCache,
    PagedCache,
    RecurrentCache,
    SlidingWindowCache,
)
from kernels.linear import gla, linear_attn, simple_gla
from kernels.position import rotary_embedding, rotary_tables
from kernels.scale import resolve_scale
from kernels.softmax import attention

__all__ = [
    "CacheView",
    "ContiguousCache",
    "KVCache",
    "PagedCache",
    "RecurrentCache",
    "SlidingWindowCache",
    "attention",
    "gla",
    "linear_attn",
    "resolve_scale",
    "rotary_embedding",
    "rotary_tables",
    "simple_gla",
]
