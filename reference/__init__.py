"""The oracles: what each op computes, written to be read, in PyTorch alone.

Every op has two forms. `gla(...)` computes the definition; `gla.second_form(...)`, which takes the
same arguments, computes what was derived another way, and is there to catch the first.

An oracle computes in the promoted dtype of its inputs, a few steps in float32 at least. Pass
float64 to judge a kernel by it: in bfloat16 steps are rounded to 8 bits, and an op that selects
keys may select others.

Dims have the same letters everywhere: B batch, T tokens, H heads, G heads that several of those
share, K key dim, V value dim, D dim of a head or channels, N sequences. README.md has the others.
"""

from reference.cache import (
    CacheView,
    CrossAttentionCache,
    KVCache,
    LatentCache,
    QuantizedCache,
    RecurrentCache,
    StreamingCache,
)
from reference.conv.short_conv import short_conv
from reference.conv.token_shift import token_shift
from reference.delta.comba import comba
from reference.delta.delta_rule import delta_rule
from reference.delta.dplr import dplr
from reference.delta.gated_delta_product import gated_delta_product
from reference.delta.gated_delta_rule import gated_delta_rule
from reference.delta.gated_oja_rule import gated_oja_rule
from reference.delta.gdn2 import gdn2
from reference.delta.iplr import iplr
from reference.delta.kda import kda
from reference.delta.mesa_net import mesa_net
from reference.delta.momentum_delta_rule import momentum_delta_rule
from reference.delta.precond import precond_gated_delta_rule, precond_kda
from reference.delta.rwkv7 import rwkv7
from reference.delta.titans import titans
from reference.delta.ttt_linear import ttt_linear
from reference.gate.decay_gate import decay_gate
from reference.gate.strength_gate import strength_gate
from reference.linear.abc import abc
from reference.linear.constant_decay import lightning_attn, retention
from reference.linear.cyfa import cyfa
from reference.linear.feature_maps import feature_map
from reference.linear.gla import gla
from reference.linear.gsa import gsa
from reference.linear.hgrn import hgrn
from reference.linear.lightnet import lightnet
from reference.linear.linear_attn import linear_attn
from reference.linear.log_linear_attn import log_linear_attn
from reference.linear.mamba2 import mamba2
from reference.linear.mamba3 import mamba3
from reference.linear.mlstm import mlstm
from reference.linear.polynomial import based, rebased
from reference.linear.rwkv4 import rwkv4
from reference.linear.rwkv6 import rwkv6
from reference.linear.selective_scan import selective_scan
from reference.linear.simple_gla import simple_gla
from reference.norm.gated import layer_norm_gated, rms_norm_gated
from reference.norm.l2norm import l2norm
from reference.position.relative import relative_bias, relative_buckets
from reference.position.rotary import multiaxis_rotary, rotary_embedding
from reference.position.tables import rotary_axes, rotary_frequencies, rotary_tables, xpos_tables
from reference.scale import resolve_scale
from reference.softmax.attention import attention
from reference.softmax.attnres import attnres
from reference.softmax.deltaformer import deltaformer
from reference.softmax.differential import differential_attention
from reference.softmax.dsa import dsa
from reference.softmax.merge import merge_attention
from reference.softmax.mla import mla
from reference.softmax.moba import moba
from reference.softmax.msa import msa
from reference.softmax.nsa import nsa
from reference.softmax.paged import paged_attention
from reference.softmax.parallax import parallax
from reference.softmax.path import path_attn
from reference.softmax.selected import selected_attention
from reference.softmax.sigmoid_attention import sigmoid_attention
from reference.softmax.stickbreaking import stickbreaking_attn
from reference.softmax.wall import wall_attn
from reference.sums.cumsum import cumsum
from reference.sums.logcumsumexp import logcumsumexp
from reference.sums.mean_pooling import mean_pooling
from reference.sums.solve_tril import solve_tril

__all__ = [
    "CacheView",
    "CrossAttentionCache",
    "KVCache",
    "LatentCache",
    "QuantizedCache",
    "RecurrentCache",
    "StreamingCache",
    "abc",
    "attention",
    "attnres",
    "based",
    "comba",
    "cumsum",
    "cyfa",
    "decay_gate",
    "delta_rule",
    "deltaformer",
    "differential_attention",
    "dplr",
    "dsa",
    "feature_map",
    "gated_delta_product",
    "gated_delta_rule",
    "gated_oja_rule",
    "gdn2",
    "gla",
    "gsa",
    "hgrn",
    "iplr",
    "kda",
    "l2norm",
    "layer_norm_gated",
    "lightnet",
    "lightning_attn",
    "linear_attn",
    "log_linear_attn",
    "logcumsumexp",
    "mamba2",
    "mamba3",
    "mean_pooling",
    "merge_attention",
    "mesa_net",
    "mla",
    "mlstm",
    "moba",
    "momentum_delta_rule",
    "msa",
    "multiaxis_rotary",
    "nsa",
    "paged_attention",
    "parallax",
    "path_attn",
    "precond_gated_delta_rule",
    "precond_kda",
    "rebased",
    "relative_bias",
    "relative_buckets",
    "resolve_scale",
    "retention",
    "rms_norm_gated",
    "rotary_axes",
    "rotary_embedding",
    "rotary_frequencies",
    "rotary_tables",
    "rwkv4",
    "rwkv6",
    "rwkv7",
    "selected_attention",
    "selective_scan",
    "short_conv",
    "sigmoid_attention",
    "simple_gla",
    "solve_tril",
    "stickbreaking_attn",
    "strength_gate",
    "titans",
    "token_shift",
    "ttt_linear",
    "wall_attn",
    "xpos_tables",
]
