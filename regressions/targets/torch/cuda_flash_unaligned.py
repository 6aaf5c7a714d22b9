"""The flash kernel for GPUs, given queries one element past an aligned address."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

q = torch.ones(2 * 40 * 64 + 1, dtype=torch.bfloat16, device="cuda")[1:].view(1, 2, 40, 64)
k, v = torch.ones(2, 1, 2, 40, 64, dtype=torch.bfloat16, device="cuda")
print("expected", 1.0)
try:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        print("got", scaled_dot_product_attention(q, k, v).float().mean().item())
except RuntimeError as error:
    print("got", str(error).splitlines()[0])
