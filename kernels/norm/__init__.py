"""Normalisation of queries and keys, and of outputs with a gate."""

from kernels.norm.gated import layer_norm_gated, rms_norm_gated
from kernels.norm.l2norm import l2norm

__all__ = ["l2norm", "layer_norm_gated", "rms_norm_gated"]
