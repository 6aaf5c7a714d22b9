"""Attention by a softmax over keys, or by a sigmoid of each."""

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
from kernels.softmax.path import path_attn
from kernels.softmax.polynomial import based, rebased
from kernels.softmax.selected import selected_attention
from kernels.softmax.sigmoid_attention import sigmoid_attention
from kernels.softmax.stickbreaking import stickbreaking_attn
from kernels.softmax.wall import wall_attn

__all__ = [
    "attention",
    "attnres",
    "based",
    "deltaformer",
    "differential_attention",
    "dsa",
    "merge_attention",
    "mla",
    "moba",
    "msa",
    "nsa",
    "paged_attention",
    "path_attn",
    "rebased",
    "selected_attention",
    "sigmoid_attention",
    "stickbreaking_attn",
    "wall_attn",
]
