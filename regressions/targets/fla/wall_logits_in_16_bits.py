"""The weight of a first key for a second query, as the gradient of its value."""

import math

import torch
from fla.ops.wall_attn import parallel_wall_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
q, k, v, g = torch.zeros(4, 1, 2, 1, 16, device=device).bfloat16()
q[..., 0] = 16
k[0, :, 0, 0] = torch.tensor([16, 11.1875])
g = g.float()
g[0, 1, 0, 0] = math.log(0.7)
v = v.requires_grad_()
parallel_wall_attn(q, k, v, g, scale=1.0)[0, 1].sum().backward()
print("expected", round(torch.tensor([16 * 0.7, 11.1875]).mul(16).softmax(0)[0].item(), 2))
print("got", round(v.grad[0, 0, 0, 0].item(), 2))
