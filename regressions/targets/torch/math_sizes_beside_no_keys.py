"""Queries of width 3, and no keys, of width 2."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

k = torch.ones(1, 1, 0, 2)
print("expected an exception")
with sdpa_kernel(SDPBackend.MATH):
    try:
        print("got", tuple(scaled_dot_product_attention(torch.ones(1, 1, 2, 3), k, k).shape))
    except RuntimeError:
        print("got an exception")
