"""Layers for models: `torch.nn.Module`s around the kernels."""

from kernels.layers.gated_attention import GatedAttention, ZeroCentredRMSNorm
from kernels.layers.gated_linear_attention import GatedLinearAttention
from kernels.layers.rotary_embedding import RotaryEmbedding

__all__ = ["GatedAttention", "GatedLinearAttention", "RotaryEmbedding", "ZeroCentredRMSNorm"]
