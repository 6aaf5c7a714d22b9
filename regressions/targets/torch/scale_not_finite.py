"""With a scale of NaN the flash kernel returns a finite number."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

q = torch.ones(1, 1, 2, 1)
with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    o = scaled_dot_product_attention(q, q, q, scale=float("nan"))
print("expected", [float("nan"), float("nan")])
print("got", o.flatten().tolist())
