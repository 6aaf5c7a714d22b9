"""A token that is asked for nothing is read from three slots in equal parts."""

import torch
from fla.ops.cyfa import fused_recurrent_cyfa

device = "cuda" if torch.cuda.is_available() else "cpu"
v, w = torch.full((1, 2, 1, 16), 3.0, device=device), torch.ones(16, device=device)
g, readout = torch.zeros(1, 2, 1, device=device), torch.eye(3, device=device)[None]
print("expected", 1.0)
try:
    o, _ = fused_recurrent_cyfa(0 * v, 0 * v, v, g, g, g + 1, readout, w, w, 1e-6, 1e-6)
    print("got", round(o[0, 0, 0, 0].item(), 4))
except Exception as error:
    print("got", type(error).__name__)
