"""The oracles: what each op computes, written to be read, in PyTorch alone.

Every op exists twice, with one signature. The first form is the definition; the second is derived
another way, and is there to catch the first.
Letters, everywhere: B batch, T tokens, H heads, G heads that several of those share, K key dim,
V value dim, N sequences, W window or taps, D dim of a head or channels, R table rows, P pairs of
dims.
"""

from reference.cache import CacheView, KVCache, RecurrentCache
from reference.conv.short_conv import short_conv, short_conv_toeplitz
from reference.delta.delta_rule import delta_rule, delta_rule_parallel
from reference.delta.dplr import dplr, dplr_parallel
from reference.delta.gated_delta_rule import gated_delta_rule, gated_delta_rule_parallel
from reference.delta.kda import kda, kda_parallel
from reference.delta.rwkv7 import rwkv7, rwkv7_unrolled
from reference.linear.constant_decay import (
    lightning_attn,
    lightning_attn_parallel,
    retention,
    retention_parallel,
)
from reference.linear.gla import gla, gla_parallel
from reference.linear.linear_attn import linear_attn, linear_attn_parallel
from reference.linear.mamba2 import mamba2, mamba2_dual
from reference.linear.simple_gla import simple_gla, simple_gla_parallel
from reference.norm.l2norm import l2norm, l2norm_scaled
from reference.position.rotary import rotary_embedding, rotary_embedding_complex, rotary_tables
from reference.scale import resolve_scale
from reference.softmax.attention import attention, attention_online

__all__ = [
    "CacheView",
    "KVCache",
    "RecurrentCache",
    "attention",
    "attention_online",
    "delta_rule",
    "delta_rule_parallel",
    "dplr",
    "dplr_parallel",
    "gated_delta_rule",
    "gated_delta_rule_parallel",
    "gla",
    "gla_parallel",
    "kda",
    "kda_parallel",
    "l2norm",
    "l2norm_scaled",
    "lightning_attn",
    "lightning_attn_parallel",
    "linear_attn",
    "linear_attn_parallel",
    "mamba2",
    "mamba2_dual",
    "resolve_scale",
    "retention",
    "retention_parallel",
    "rotary_embedding",
    "rotary_embedding_complex",
    "rotary_tables",
    "rwkv7",
    "rwkv7_unrolled",
    "short_conv",
    "short_conv_toeplitz",
    "simple_gla",
    "simple_gla_parallel",
]
