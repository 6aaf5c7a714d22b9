"""Convolution over the last few tokens."""
