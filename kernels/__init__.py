"""Attention kernels in Triton. Each op takes the arguments of its namesake in `reference`, and the
keyword-only `mode` and `tile` besides, which change how an op computes and not what.

Triton's interpreter (`TRITON_INTERPRET=1`) runs them after `properties.interpreter.install()`. By
itself it fails on bool arguments before Triton 3.8, and on casts of loop variables.
"""

from kernels.cache import (
    CacheView,
    ContiguousCache,
    CrossAttentionCache,
    KVCache,
    LatentCache,
    PagedCache,
    QuantizedCache,
    RecurrentCache,
    SlidingWindowCache,
    StreamingCache,
)
from kernels.conv.short_conv import short_conv
from kernels.conv.token_shift import token_shift
from kernels.delta.comba import comba
from kernels.delta.delta_rule import delta_rule
from kernels.delta.dplr import dplr
from kernels.delta.gated_delta_product import gated_delta_product
from kernels.delta.gated_delta_rule import gated_delta_rule
from kernels.delta.gated_oja_rule import gated_oja_rule
from kernels.delta.gdn2 import gdn2
from kernels.delta.iplr import iplr
from kernels.delta.kda import kda
from kernels.delta.mesa_net import mesa_net
from kernels.delta.momentum_delta_rule import momentum_delta_rule
from kernels.delta.precond import precond_gated_delta_rule, precond_kda
from kernels.delta.rwkv7 import rwkv7
from kernels.delta.titans import titans
from kernels.delta.ttt_linear import ttt_linear
from kernels.gate.decay_gate import decay_gate
from kernels.gate.strength_gate import strength_gate
from kernels.linear.abc import abc
from kernels.linear.constant_decay import lightning_attn, retention
from kernels.linear.cyfa import cyfa
from kernels.linear.feature_maps import feature_map
from kernels.linear.gla import gla
from kernels.linear.gsa import gsa
from kernels.linear.hgrn import hgrn
from kernels.linear.lightnet import lightnet
from kernels.linear.linear_attn import linear_attn
from kernels.linear.log_linear_attn import log_linear_attn
from kernels.linear.mamba2 import mamba2
from kernels.linear.mamba3 import mamba3
from kernels.linear.mlstm import mlstm
from kernels.linear.rwkv4 import rwkv4
from kernels.linear.rwkv6 import rwkv6
from kernels.linear.selective_scan import selective_scan
from kernels.linear.simple_gla import simple_gla
from kernels.norm.gated import layer_norm_gated, rms_norm_gated
from kernels.norm.l2norm import l2norm
from kernels.position.relative import relative_bias, relative_buckets
from kernels.position.rotary import multiaxis_rotary, rotary_embedding
from kernels.position.tables import rotary_axes, rotary_frequencies, rotary_tables, xpos_tables
from kernels.scale import resolve_scale
from kernels.softmax.attention import attention
from kernels.softmax.attnres import attnres
from kernels.softmax.deltaformer import deltaformer
from kernels.softmax.differential import differential_attention
from kernels.softmax.dsa import dsa
from kernels.softmax.merge import merge_attention
from kernels.softmax.mla import mla
from kernels.softmax.moba import moba
from kernels.softmax.msa import msa
from kernels.softmax.nsa import nsa
from kernels.softmax.paged import paged_attention
from kernels.softmax.parallax import parallax
from kernels.softmax.path import path_attn
from kernels.softmax.polynomial import based, rebased
from kernels.softmax.selected import selected_attention
from kernels.softmax.sigmoid_attention import sigmoid_attention
from kernels.softmax.stickbreaking import stickbreaking_attn
from kernels.softmax.wall import wall_attn
from kernels.sums.cumsum import cumsum
from kernels.sums.logcumsumexp import logcumsumexp
from kernels.sums.mean_pooling import mean_pooling
from kernels.sums.solve_tril import solve_tril

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
