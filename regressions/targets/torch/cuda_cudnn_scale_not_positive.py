"""Causal attention with a negative scale by the cudnn kernel for GPUs."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

q = k = v = torch.ones(1, 1, 8, 64, dtype=torch.bfloat16, device="cuda")
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    o = scaled_dot_product_attention(q, k, v, is_causal=True, scale=-0.5)
print("expected", 1.0)
print("got", o.mean().item())
