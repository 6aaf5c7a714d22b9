"""A float32 mask, which is accepted beside 16-bit queries: the first key alone is seen."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

q = k = torch.ones(1, 1, 8, 64, dtype=torch.bfloat16, device="cuda")
v = torch.arange(8.0, device="cuda").bfloat16().view(1, 1, 8, 1).expand(1, 1, 8, 64).contiguous()
mask = torch.full((8, 8), -1e4, device="cuda")
mask[:, 0] = 0
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    o = scaled_dot_product_attention(q, k, v, attn_mask=mask)
print("expected", [0.0, 0.0])
print("got", o[0, 0, :2, 0].tolist())
