"""Layers of models as functions of their weights."""

from reference.layers.gated_attention import gated_attention

__all__ = ["gated_attention"]
