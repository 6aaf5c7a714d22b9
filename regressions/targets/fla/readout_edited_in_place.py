"""Cyclic flow attention, a readout that is loaded after a first call: the next call reads it."""

import torch
from fla.ops.cyfa import fused_recurrent_cyfa

device = "cuda" if torch.cuda.is_available() else "cpu"
v, w = torch.ones(1, 1, 1, 16, device=device), torch.ones(16, device=device)
g, readout = torch.zeros(1, 1, 1, device=device), torch.zeros(1, 15, 15, device=device)
for factor in (15.0, 30.0):
    readout.data.copy_(factor * torch.eye(15))
    o, _ = fused_recurrent_cyfa(0 * v, 0 * v, v, g, g, g + 1, readout, w, w, 1e-6, 1e-6)
print("expected", 2.0)
print("got", round(o[0, 0, 0, 0].item(), 4))
