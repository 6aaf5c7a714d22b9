"""A query that sees one compressed block gives it all its weight: its logit has no gradient."""

import torch
from fla.ops.nsa import parallel_nsa

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.ones(1, 16, 16, 16, device=device, requires_grad=True)
k, v = torch.ones(1, 16, 1, 16, device=device), torch.ones(1, 16, 1, 136, device=device)
g = torch.ones(1, 16, 16, device=device)
parallel_nsa(q, k, v, g_cmp=g, block_counts=1, block_size=16).sum().backward()
print("expected", 0.0)
print("got", q.grad[0, 15, 0, 0].item())
