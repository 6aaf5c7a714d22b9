"""Momenta that halve at each of 64 tokens; only the last token writes: what it reads is 1."""

import math

import torch
from fla.ops.momentum_delta_rule import chunk_momentum_delta_rule

device = "cuda" if torch.cuda.is_available() else "cpu"
k = torch.zeros(1, 64, 1, 16, device=device, dtype=torch.bfloat16)
k[:, -1, :, 0] = 1
g = torch.zeros(1, 64, 1, device=device)
o, _ = chunk_momentum_delta_rule(k, k, torch.ones_like(k), g, g - math.log(2), scale=1.0)
print("expected", 1.0)
print("got", o[0, -1, 0, 0].item())
