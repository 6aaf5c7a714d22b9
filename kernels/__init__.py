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
from kernels.conv import short_conv, token_shift
from kernels.delta import (
    comba,
    delta_rule,
    dplr,
    gated_delta_product,
    gated_delta_rule,
    gdn2,
    iplr,
    kda,
    rwkv7,
)
from kernels.linear import (
    gla,
    gsa,
    hgrn,
    lightning_attn,
    linear_attn,
    mamba2,
    retention,
    rwkv6,
    simple_gla,
)
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
from kernels.softmax import (
    attention,
    dsa,
    merge_attention,
    mla,
    moba,
    msa,
    nsa,
    paged_attention,
    selected_attention,
)

__all__ = [
    "CacheView",
    "ContiguousCache",
    "KVCache",
    "PagedCache",
    "RecurrentCache",
    "SlidingWindowCache",
    "attention",
    "comba",
    "delta_rule",
    "dplr",
    "dsa",
    "gated_delta_product",
    "gated_delta_rule",
    "gdn2",
    "gla",
    "gsa",
    "hgrn",
    "iplr",
    "kda",
    "l2norm",
    "lightning_attn",
    "linear_attn",
    "mamba2",
    "merge_attention",
    "mla",
    "moba",
    "msa",
    "multiaxis_rotary",
    "nsa",
    "paged_attention",
    "resolve_scale",
    "retention",
    "rotary_axes",
    "rotary_embedding",
    "rotary_frequencies",
    "rotary_tables",
    "rwkv6",
    "rwkv7",
    "selected_attention",
    "short_conv",
    "simple_gla",
    "token_shift",
    "xpos_tables",
]
