"""A first gate of -1e6 has nothing to forget; what the first token wrote decays by exp(-0.01)."""

import math

import torch
from fla.ops.kda import chunk_kda

device = "cuda" if torch.cuda.is_available() else "cpu"
k = torch.zeros(1, 2, 1, 16, device=device)
k[:, 0] = 0.25
q, v = torch.full_like(k, 0.25), torch.ones_like(k)
g = torch.tensor([-1e6, -0.01], device=device).view(1, 2, 1, 1).expand_as(k).contiguous()
o, _ = chunk_kda(q, k, v, g, torch.ones_like(g[..., 0]), scale=1.0)
print("expected", round(math.exp(-0.01), 4))
print("got", round(o[0, 1, 0, 0].item(), 4))
