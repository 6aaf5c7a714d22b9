"""Interleaved sections of 1, 3 and 2 pairs: height gets 2 pairs, and time 3."""

from types import SimpleNamespace

import torch
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

axis_of_each_pair = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 1, 6).clone()
config = SimpleNamespace(mrope_section=[1, 3, 2])
axes = Qwen3VLTextRotaryEmbedding.recomposition_frequencies(config, axis_of_each_pair)
print("expected", [1, 3, 2])
print("got", axes[0, 0, :6].long().bincount(minlength=3).tolist())
