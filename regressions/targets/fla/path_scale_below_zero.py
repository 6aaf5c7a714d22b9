"""PaTH attention with a gate: the gradient of the values of one token."""

import torch
from fla.ops.path_attn import parallel_path_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
x, g = torch.ones(1, 1, 1, 16, device=device), torch.zeros(1, 1, 1, device=device)
v = torch.ones(1, 1, 1, 16, device=device, requires_grad=True)
parallel_path_attn(x, x, v, x, g, g, scale=-1.0)[0].sum().backward()
print("expected", 1.0)
print("got", v.grad[0, 0, 0, 0].item())
