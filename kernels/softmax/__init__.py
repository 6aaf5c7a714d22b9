"""Attention by a softmax over keys."""

from kernels.softmax.attention import attention
from kernels.softmax.merge import merge_attention
from kernels.softmax.paged import paged_attention

__all__ = ["attention", "merge_attention", "paged_attention"]
