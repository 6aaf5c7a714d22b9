"""Native sparse attention of a token behind an empty sequence: it sees itself."""

import torch
from fla.ops.nsa import parallel_nsa

device = "cuda" if torch.cuda.is_available() else "cpu"
q, k = torch.ones(1, 1, 16, 16, device=device), torch.ones(1, 1, 1, 16, device=device)
block, bounds = torch.zeros(1, 1, 1, 1, device=device), torch.tensor([0, 0, 1], device=device)
o = parallel_nsa(q, k, k, block_indices=block.long(), block_size=16, cu_seqlens=bounds)
print("expected", 1.0)
print("got", o[0, 0, 0, 0].item())
