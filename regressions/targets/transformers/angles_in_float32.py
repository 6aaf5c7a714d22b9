"""The cosine of position 2^20, with a base of 500,000: angles are products in float32."""

import math

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

plain = {"rope_type": "default", "rope_theta": 500000.0}
rotary = LlamaRotaryEmbedding(LlamaConfig(head_dim=128, rope_parameters=plain))
cos, _ = rotary(torch.zeros(1), torch.tensor([[2**20]]))
print("expected", round(math.cos(2**20 * 500000.0 ** (-2 / 128)), 3))
print("got", round(float(cos[0, 0, 1]), 3))
