"""Causal attention with a scale of 0 or less is NaN on a CPU."""

import torch
from torch.nn.functional import scaled_dot_product_attention

q = k = v = torch.ones(1, 1, 2, 1)
o = scaled_dot_product_attention(q, k, v, is_causal=True, scale=-0.5)
print("expected", [1.0, 1.0])
print("got", o.flatten().tolist())
