"""A row that a mask hides all keys from: by cuDNN it is the mean of the values."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

q = k = v = torch.ones(1, 1, 8, 64, dtype=torch.bfloat16, device="cuda")
mask = torch.ones(8, 8, dtype=torch.bool, device="cuda").tril(-1)
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    o = scaled_dot_product_attention(q, k, v, attn_mask=mask)
print("expected", [0.0, 1.0])
print("got", o[0, 0, :2, 0].tolist())
