"""Forgetting attention: a first gate of -1e6 shuts out nothing, as there is no key before it."""

import math

import torch
from fla.ops.attn import parallel_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.zeros(1, 2, 1, 16, device=device)
v = torch.tensor([0.0, 1.0], device=device).view(1, 2, 1, 1).expand(1, 2, 1, 16).contiguous()
g = torch.tensor([-1e6, -0.01], device=device).view(1, 2, 1)
o = parallel_attn(q, q, v, g)
print("expected", round(1 / (1 + math.exp(-0.01)), 4))
print("got", round(o[0, 1, 0, 0].item(), 4))
