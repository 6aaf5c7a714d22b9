"""Forgetting attention: behind a gate of -inf, a token attends to itself."""

import torch
from fla.ops.attn import parallel_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 2, 1, 16, device=device)
g = torch.tensor([0.0, -torch.inf], device=device).view(1, 2, 1)
print("expected", [1.0, 1.0])
print("got", parallel_attn(x, x, x, g)[0, :, 0, 0].tolist())
