"""Layers for models: `torch.nn.Module`s around the kernels."""

from kernels.layers.rotary_embedding import RotaryEmbedding

__all__ = ["RotaryEmbedding"]
