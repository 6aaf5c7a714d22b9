"""A query of zeros: no key has a weight, the normalized output is 0 in every dtype."""

import torch
from fla.ops.linear_attn import fused_recurrent_linear_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
k = torch.ones(1, 1, 1, 16, dtype=torch.float16, device=device)
o, _ = fused_recurrent_linear_attn(torch.zeros_like(k), k, k, normalize=True)
print("expected", 0.0)
print("got", o[0, 0, 0, 0].item())
