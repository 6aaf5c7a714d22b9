"""Wall attention in float16: the last value has the gradient of the last token alone."""

import torch
from fla.ops.wall_attn import parallel_wall_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 2, 1, 16, device=device, dtype=torch.float16)
v = torch.ones(1, 2, 1, 16, device=device, dtype=torch.float16, requires_grad=True)
g = torch.tensor([0.0, -40.0], device=device).view(1, 2, 1, 1).expand(1, 2, 1, 16).contiguous()
parallel_wall_attn(x, x, v, g, scale=1.0).sum().backward()
print("expected", 1.0)
print("got", round(v.grad[0, 1, 0, 0].item(), 2))
