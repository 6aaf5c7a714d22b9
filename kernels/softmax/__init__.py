"""Attention by a softmax over keys."""

from kernels.softmax.attention import attention

__all__ = ["attention"]
