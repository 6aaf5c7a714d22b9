"""Wall attention: the first gate decays no key, and has no gradient."""

import torch
from fla.ops.wall_attn import parallel_wall_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 1, 1, 16, device=device)
k = torch.ones(1, 1, 1, 16, device=device, requires_grad=True)
parallel_wall_attn(x, k, x, -100 * x).sum().backward()
print("expected", 0.0)
print("got", k.grad[0, 0, 0, 0].item())
