"""Normalized BASED attention to one key, whose weight is 1 whatever the logit is."""

import torch
from fla.ops.based import parallel_based

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.full((1, 1, 1, 16), 32.0, device=device, dtype=torch.float16)
print("expected", 1.0)
print("got", parallel_based(q, q, torch.ones_like(q))[0, 0, 0, 0].item())
