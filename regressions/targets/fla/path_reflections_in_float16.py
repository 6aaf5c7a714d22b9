"""PaTH attention without reflections: queries of 1e5 that no key sees."""

import torch
from fla.ops.path_attn import parallel_path_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.full((1, 129, 1, 16), 1e5, device=device)
zero, beta = torch.zeros_like(q), torch.zeros(1, 129, 1, device=device)
one = torch.ones_like(q)
o, _ = parallel_path_attn(q, zero, one, zero, beta, scale=1.0)
print("expected", 1.0)
print("got", o[0, 128, 0, 0].item())
