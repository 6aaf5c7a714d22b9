"""Convolution over the last few tokens."""

from kernels.conv.short_conv import short_conv
from kernels.conv.token_shift import token_shift

__all__ = ["short_conv", "token_shift"]
