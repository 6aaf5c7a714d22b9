"""One query and two keys, both of which it sees: each value has half of the weight of 16 heads."""

import torch
from fla.ops.nsa import parallel_nsa

device = "cuda" if torch.cuda.is_available() else "cpu"
q, k = torch.ones(1, 1, 16, 16, device=device), torch.ones(1, 2, 1, 16, device=device)
v = torch.ones_like(k).requires_grad_()
block = torch.zeros(1, 1, 1, 1, device=device, dtype=torch.long)
print("expected", [8.0, 8.0])
try:
    parallel_nsa(q, k, v, block_indices=block, block_size=16).sum().backward()
    print("got", v.grad[0, :, 0, 0].tolist())
except RuntimeError as error:
    print("got", str(error).partition(" at ")[0])
