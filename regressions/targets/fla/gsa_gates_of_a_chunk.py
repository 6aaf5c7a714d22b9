"""A first gate of -1e6 has nothing to forget; what the first token wrote decays by exp(-0.01)."""

import math

import torch
from fla.ops.gsa import chunk_gsa

device = "cuda" if torch.cuda.is_available() else "cpu"
q, v = torch.zeros(1, 2, 1, 16, device=device), torch.ones(1, 2, 1, 16, device=device)
s = torch.tensor([1.0, 0.0], device=device).view(1, 2, 1, 1).expand_as(v).contiguous()
g = torch.tensor([-1e6, -0.01], device=device).view(1, 2, 1, 1).expand_as(v).contiguous()
o, _ = chunk_gsa(q, q, v, s, g)
print("expected", round(math.exp(-0.01), 4))
print("got", round(o[0, 1, 0, 0].item(), 4))
