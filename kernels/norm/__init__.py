"""Normalisation of queries and keys."""

from kernels.norm.l2norm import l2norm

__all__ = ["l2norm"]
