"""Convolution over the last few tokens."""

from kernels.conv.short_conv import short_conv

__all__ = ["short_conv"]
