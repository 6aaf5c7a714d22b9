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
from kernels.conv import short_conv
from kernels.delta import delta_rule, dplr, gated_delta_rule, kda, rwkv7
from kernels.linear import gla, lightning_attn, linear_attn, mamba2, retention, simple_gla
from kernels.norm import l2norm
from kernels.position import (
    multiaxis_rotary,
    rotary_axes,
    rotary_embedding,
    rotary_frequencies,
    rotary_tables,
    xpos_tables,
)
from kernels.scale import resolve_scale
from kernels.softmax import attention, merge_attention, paged_attention

__all__ = [
    "CacheView",
    "ContiguousCache",
    "KVCache",
    "PagedCache",
    "RecurrentCache",
    "SlidingWindowCache",
    "attention",
    "delta_rule",
    "dplr",
    "gated_delta_rule",
    "gla",
    "kda",
    "l2norm",
    "lightning_attn",
    "linear_attn",
    "mamba2",
    "merge_attention",
    "multiaxis_rotary",
    "paged_attention",
    "resolve_scale",
    "retention",
    "rotary_axes",
    "rotary_embedding",
    "rotary_frequencies",
    "rotary_tables",
    "rwkv7",
    "short_conv",
    "simple_gla",
    "xpos_tables",
]
