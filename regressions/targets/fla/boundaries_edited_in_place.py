"""Two sequences of a token each, of three; in the call before, the empty one came first."""

import torch
from fla.ops.simple_gla import parallel_simple_gla

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 2, 1, 16, device=device)
bounds = torch.tensor([0, 0, 1, 2], device=device)
parallel_simple_gla(x, x, x, scale=1.0, cu_seqlens=bounds)
bounds.copy_(torch.tensor([0, 1, 2, 2]))
o, _ = parallel_simple_gla(x, x, x, scale=1.0, cu_seqlens=bounds)
print("expected", [16.0, 16.0])
print("got", o[0, :, 0, 0].tolist())
