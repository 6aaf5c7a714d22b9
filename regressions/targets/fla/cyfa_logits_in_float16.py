"""One token finds its own value: weights of the norms make its logit 160000."""

import torch
from fla.ops.cyfa import chunk_cyfa

device = "cuda" if torch.cuda.is_available() else "cpu"
x, w = torch.ones(1, 1, 1, 16, device=device).half(), torch.full((16,), 100.0, device=device)
g, readout = torch.zeros(1, 1, 1, device=device), torch.eye(15, device=device)[None]
print("expected", 1.0)
o, _ = chunk_cyfa(x, x, x, g, g, g + 1, readout, w, w, 1e-6, 1e-6, scale=1.0)
print("got", round(o[0, 0, 0, 0].item(), 2))
