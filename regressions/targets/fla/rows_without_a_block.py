"""A query that selects no block sees no key: its output is 0."""

import torch
from fla.ops.nsa import parallel_nsa

device = "cuda" if torch.cuda.is_available() else "cpu"
q, k = torch.ones(1, 1, 16, 16, device=device), torch.ones(1, 1, 1, 16, device=device)
blocks = torch.full((1, 1, 1, 1), -1, device=device)
print("expected", 0.0)
print("got", parallel_nsa(q, k, k, block_indices=blocks, block_size=16)[0, 0, 0, 0].item())
